"""How often each token counts in what the optimizer reads of every parameter: measured against a single device.

A step is run three times, each beside the single-device model at the same parameters: with a loss so small that nothing
is clipped, with one so large that everything is, and once more as it is. Of the single device the part of each set of
tokens in a gradient is known, since a loss is a sum over tokens, and so is a product's gradient; least squares tell how
often each part is in what the optimizer reads. Nothing of the recorder is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from placealg.errors import InputError
from placealg.watch.recorder.observe import Watched
from placealg.watch.recorder.parameters import first_place, local, plain_name
from placealg.watch.recorder.parts import Parts, parts_of
from placealg.watch.recorder.places import copied, held, place_of
from placealg.watch.seen import CLIPPED, SECOND, UNCLIPPED, Probe, Weight

FACTORS: Mapping[str, float] = {UNCLIPPED: 2.0 ** -20, CLIPPED: 2.0 ** 20, SECOND: 1.0}
"""Probe -> by what its loss is multiplied. Powers of two change no digit."""

CLOSE = 1e-7
"""What weights leave of a gradient, as a part of it, below which they explain it."""

APART = 1e-7
"""Smallest over largest singular value above which the weights of parts can be told apart."""


Read = tuple[Tensor, Tensor | None]
"""What the optimizer reads, and the places of its elements if these are not its parameter's."""


@dataclass(frozen=True)
class Reference:
    """The single device: its model, of which `losses(model, batch)` are the losses of each token of a whole step.

    They have the shape (sequences, tokens), and their sum is what the single device minimises. `clip` is the norm to
    which it clips; 0 leaves that open.
    """

    model: nn.Module
    losses: Callable[[nn.Module, Any], Tensor]
    batch: Any
    clip: float = 0.0


Places = Mapping[str, Tensor | str]
"""Parameter -> the places of a rank's elements in the single device's; why they are not known, in words."""


def places_in(model: nn.Module | Sequence[nn.Module], reference: Reference) -> Places:
    """Where this rank's elements stand in the single device's; of plain tensors as long as their numbers are equal."""
    wholes = {plain_name(n): p for n, p in reference.model.named_parameters(remove_duplicate=False)}
    return {name: place_of(name, p.detach(), wholes) for name, p in Watched(model).parameters.items()}


def weigh(step: Callable[[], object], model: nn.Module | Sequence[nn.Module], reference: Reference,
          places: Places | None = None) -> tuple[Probe, ...]:
    """Run three steps beside the single device, and measure the weights of each; every rank of the run calls it.

    The step trains on the reference's batch each time. Names of parameters are those of the reference. `places` are
    those of `places_in` at a time when both had the same numbers; now, where there are none.
    """
    if dist.is_initialized() and str(dist.get_backend()) == "fake":
        raise InputError("on the fake process group no number is sent: there is no weight to measure")
    watched = Watched(model)
    for name, parameter in {**watched.parameters, **dict(reference.model.named_parameters())}.items():
        if parameter.dtype != torch.float64:
            raise InputError(f"weights are measured in float64, and {name} is "
                             f"{str(parameter.dtype).removeprefix('torch.')}: make both models with .double()")
    wholes = {plain_name(n): p for n, p in reference.model.named_parameters(remove_duplicate=False)}
    places = places_in(model, reference) if places is None else places
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    found = []
    for name, factor in FACTORS.items():
        apart = copied(watched.parameters, places, wholes)
        grads = gradients(step, watched.parameters, factor)
        parts = parts_of(reference.model, reference.losses, reference.batch, ranks)
        weights = tuple(weight(n, grads[n], place, parts) if n in grads else Weight(
            n, note="no copy of it is updated here, or its numbers do not tell which") for n, place in places.items())
        found.append(Probe(name, parts.norm * factor, weights, apart, reference.clip))
    return tuple(found)


def gradients(step: Callable[[], object], parameters: Mapping[str, Tensor], factor: float) -> dict[str, Read | None]:
    """What the optimizer reads of every parameter in a step whose loss is multiplied by a factor, divided by it.

    With it the places of its elements, where it is not placed as its parameter is.
    """
    read: dict[str, tuple[Tensor, Tensor | None] | None] = {}
    own, copies = {id(p) for p in parameters.values()}, []
    last: dict[int, Any] = {}

    def begun(optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in last:  # what hooks of one's own do to gradients is done before
            last[id(optimizer)] = optimizer.register_step_pre_hook(before)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        by = factor * float(getattr(optimizer, "grad_scale", None) or 1.0)  # a fused one divides by the second
        if not own & {id(p) for p in trained}:
            for each in trained:
                if each.grad is not None:
                    copies.append(local(each.grad).detach().div_(factor))
                    read.update(of_copy(each, copies[-1], parameters))
            return
        for name, parameter in parameters.items():
            if read.get(name) is None:
                grad = parameter.grad
                read[name] = None if grad is None else (local(grad).detach().clone() / by, _own(grad, parameter))
                if grad is not None:
                    local(grad).detach().div_(factor)

    handle = register_optimizer_step_pre_hook(begun)
    try:
        with _multiplied(factor):
            step()
    finally:
        for each in (handle, *last.values()):
            each.remove()
    if not read and not copies:
        raise InputError("the step never called an optimizer: a training step ends with optimizer.step()")
    return read


def of_copy(copy: Tensor, grad: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Read]:
    """What the optimizer reads of each parameter of which a copy has elements: which these are, their numbers say.

    A parameter with a number that stands twice anywhere is left out.
    """
    every = {name: local(p).detach().flatten() for name, p in parameters.items()}
    numbers, order = torch.cat(list(every.values())).sort()
    twice = torch.zeros(numbers.numel(), dtype=torch.bool)
    twice[1:] = numbers[1:] == numbers[:-1]
    twice[:-1] |= twice[1:].clone()
    mine, read = local(copy).detach().flatten(), grad.flatten()
    at = torch.searchsorted(numbers, mine).clamp(max=numbers.numel() - 1)
    whose, first, found = torch.where(numbers[at] == mine, order[at], -1), 0, {}
    for name, values in every.items():
        here = (whose >= first) & (whose < first + values.numel())
        unclear = bool(twice[(order >= first) & (order < first + values.numel())].any())
        if bool(here.any()) and not unclear:
            found[name] = read[here].clone(), whose[here] - first + first_place(parameters[name])
        first += values.numel()
    return found


def _own(grad: Tensor, parameter: Tensor) -> Tensor | None:
    """The places of a gradient's elements in the whole parameter, if they are not its parameter's."""
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
        part = held(grad, torch.arange(grad.numel()).view(grad.shape))
        return None if part is None else part.flatten()
    return None


@contextmanager
def _multiplied(factor: float) -> Iterator[None]:
    """Begin every backward of a number with a factor."""
    backward = torch.autograd.backward

    def scaled(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors or [None] * len(listed))
        if torch._C._current_graph_task_id() == -1:
            given = [(torch.ones_like(t) if g is None else g) * factor if t.numel() == 1 else g
                     for t, g in zip(listed, given, strict=True)]
        return backward(listed, given, *args, **kwargs)

    torch.autograd.backward = scaled
    try:
        yield
    finally:
        torch.autograd.backward = backward


def weight(name: str, read: Read | None, place: Tensor | str, parts: Parts) -> Weight:
    """The weights of one parameter on this rank, by the finest division of tokens that can be told apart."""
    if isinstance(place, str):
        return Weight(name, note=place)
    if name not in parts.by_loss:
        return Weight(name, note="the single device has no gradient for it")
    if read is None:
        return Weight(name, 1, 0.0, 0.0, 0.0, 0.0, "every token", "every token")
    grad, own = read
    place = place if own is None else own
    if grad.numel() != place.numel():
        return Weight(name, note="its gradient has another shape than it has")
    if not place.numel():
        return Weight(name, note="this rank holds none of it")
    scale = float(parts.by_loss[name].sum((0, 1)).abs().max())
    if scale <= 1e-12 * parts.norm:
        return Weight(name, note="its gradient is zero")
    best: Weight | None = None
    for table in (parts.by_site.get(name), parts.by_loss[name][None]):
        if table is None:
            continue
        held = table.flatten(3)[..., place]
        for cells, labels in divisions(held, name, parts.sites):
            found = fitted(name, cells, labels, grad.flatten(), scale)
            if found is None:
                continue
            if found.rest <= CLOSE:
                return found
            best = best or found
    return best or Weight(name, note="its gradient is zero on this rank")


def divisions(table: Tensor, name: str, sites: Mapping[str, Sequence[str]]
              ) -> Iterator[tuple[Tensor, list[tuple[str, int, int, int, int]]]]:
    """(parts of a gradient by set of tokens, which these are), finest first: uses, sequences, places in a sequence.

    `table` has the shape (uses, sequences, places, elements).
    """
    uses, rows, places, _ = table.shape
    several = sites.get(name, ())
    for apart in ((True, False) if uses > 1 else (True,)):
        whole = table if apart else table.sum(0, keepdim=True)
        for each in [k for k in range(1, rows + 1) if rows % k == 0]:
            for count in [k for k in range(places, 0, -1) if places % k == 0]:
                cells = whole.unflatten(1, (rows // each, each)).unflatten(3, (count, places // count)).sum((2, 4))
                labels = [(several[u] if apart and uses > 1 else "", r * each, each, p, count)
                          for u in range(cells.shape[0]) for r in range(rows // each) for p in range(count)]
                yield cells.flatten(0, 2), labels


def fitted(name: str, cells: Tensor, labels: Sequence[tuple[str, int, int, int, int]], grad: Tensor,
           scale: float) -> Weight | None:
    """The weights with which cells make a gradient; None where there is more than one answer, or no cell at all."""
    sizes = cells.norm(dim=1)
    there = sizes > 1e-12 * scale
    if not 0 < int(there.sum()) <= max(cells.shape[1] - 1, 1):
        return None
    chosen = (cells[there] / sizes[there, None]).T
    values = torch.linalg.svdvals(chosen)
    if float(values[-1]) < APART * float(values[0]):
        return None
    weights = torch.linalg.lstsq(chosen, grad[:, None], driver="gelsd").solution[:, 0]
    size = float(grad.abs().max())
    rest = float((chosen @ weights - grad).abs().max()) / size if size > 1e-14 * scale else 0.0
    weights = weights / sizes[there]
    said = [label for label, one in zip(labels, there.tolist(), strict=True) if one]
    low, high = int(weights.argmin()), int(weights.argmax())
    least, most, mean = (float(f"{float(v):.12g}") for v in (weights[low], weights[high], weights.mean()))
    return Weight(name, len(said), least, most, mean, float(f"{rest:.3g}"), _words(said[low]), _words(said[high]))


def _words(label: tuple[str, int, int, int, int]) -> str:
    """A set of tokens in words."""
    use, first, each, place, count = label
    rows = f"sequence {first}" if each == 1 else f"sequences {first} to {first + each - 1}"
    where = f", part {place + 1} of {count}" if count > 1 else ""
    return f"{rows}{where}" + (f", in {use}" if use else "")


