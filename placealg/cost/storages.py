"""What the walk over a microbatch's tensors is told in: storages, their boxes, and the work of events on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from placealg.arith import ONE, Monomial
from placealg.models.graph import Graph, Tensor
from placealg.placement import MEMORY_TIERS
from placealg.step.event import Event
from placealg.step.saved_tensors import PER_DEVICE

Version = tuple[str, str]
"""(tensor or NAME.grad, label)."""

Box = frozenset[tuple[str, str]]
"""(axis, dim by which it splits)."""

DEVICE = MEMORY_TIERS[0]
"""The tier on which ops run."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of one version: the elements of a tensor in a box; a view has the storage of what it shows.

    `part` is the fraction held at a time: two blocks of a value in a ring. A copy on another tier has a version of its
    own, called after that tier.
    """

    version: Version
    box: Box
    tensor: Tensor = field(compare=False)
    part: Monomial = ONE
    tier: str = DEVICE


@dataclass(slots=True)
class Touch:
    """One event's work on tensors: the versions that it reads, what it makes, and what is held around it.

    `source` is the input of a redistribution, `box` the split of a compute's iteration space. `before` is all that is
    held and live when the event begins, `during` all storages that are held while it runs.
    """

    event: Event
    before: dict[Version, Storage]
    reads: dict[Version, Storage] = field(default_factory=dict)
    writes: list[Storage] = field(default_factory=list)
    source: Storage | None = None
    box: Box = frozenset()
    during: frozenset[Storage] = frozenset()


def local(tensor: Tensor, box: Box, split_batch: Iterable[str] = ()) -> Monomial:
    """Elements on one device; the batch's size is one device's, so along `split_batch` an unsplit batch has more."""
    elements = tensor.elements
    for axis, dim in box:
        if dim != PER_DEVICE:
            elements = elements / Monomial.of(axis)
    if PER_DEVICE in tensor.dims:
        elements = elements * Monomial.of(*(a for a in split_batch if (a, PER_DEVICE) not in box))
    return elements


def names_of(graph: Graph, tensor: str) -> Mapping[str, str]:
    """Dims of the storage that a tensor shows -> the tensor's own names for them."""
    op = graph.producer(tensor)
    if op is None or not op.row.view:
        return {d: d for d in graph.tensors[tensor].dims}
    return {root: op.rename.get(dim, dim) for root, dim in names_of(graph, op.inputs[0]).items()}


def along(box: Box, tensor: Tensor) -> Box:
    """The part of a box on the tensor's dims."""
    return frozenset((axis, dim) for axis, dim in box if dim in tensor.dims)
