"""Faults put into real runs on purpose: what is done wrong, the strategy file that says the same, what must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.measure.cells import SIZES, Cell

LEAST = 1e-4
"""How far at least a run with a fault is from the single device's after three steps of SGD."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the strategy file in proofs/refuted, the class of `faulty.py` that runs it, on which mesh.

    The ratio is what the counterexample names: its mass, or, where `measured` is about less than the whole gradient,
    what it says in words: `says` is the value of `words`. `measured` tells what the ratio is taken of in the real run.
    """

    name: str
    file: str
    system: str
    mesh: FrozenMap[str, int]
    measured: str
    says: str = ""
    words: str = ""
    m: int = 1
    options: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name

    @property
    def cell(self) -> Cell:
        """The fault as a cell of the matrix."""
        world = 1
        for size in self.mesh.values():
            world *= size
        clip = "clip" in self.options
        return Cell(self.name, self.file, self.system, tuple(self.mesh), self.mesh, m=self.m, clip=clip, world=world,
                    options=self.options - {"clip"}, sizes=FrozenMap(SIZES))


_OF_GRADIENT = "the gradient, along the single device's, mean over ranks"
_FOUR = FrozenMap({"dp": 4})

FAULTS: Sequence[Fault] = (
    Fault("all_reduce skipped", "dp_reduce_dropped", "Unreduced", _FOUR, _OF_GRADIENT),
    Fault("sum for mean", "dp_sum_for_mean", "Summed", _FOUR, _OF_GRADIENT),
    Fault("stale copy", "zero1_publish_dropped", "Unpublished", _FOUR,
          "how far parameters of other owners move in a step, over how far they should", says="0",
          words="a stale or undefined copy"),
    Fault("norm's gradient not reduced", "megatron_1446", "NormApart", FrozenMap({"tp": 4}),
          "the final norm's gradient, along the single device's, mean over ranks"),
    Fault("clipped by the local shard", "areal_312", "ClippedAlone", _FOUR,
          "the squared norm by which a rank clips, over the whole one, mean over ranks",
          options=frozenset({"clip"})),
    Fault("tied embedding not synchronised", "pp_tied_embedding_not_reduced", "TiedApart", FrozenMap({"pp": 2}),
          "the part of lookups in the last stage's gradient of the embedding", says="0",
          words="contributions through embedding.tokens are zero", m=2, options=frozenset({"tied"})),
    Fault("bias added on every rank", "tp_bias_on_every_rank", "BiasEverywhere", FrozenMap({"tp": 4}),
          "how often the bias is in what the product passes on", says="tp", words="some contributions tp times"),
    Fault("unequal counts averaged", "dp_mean_of_means_unequal_counts", "Unequal", FrozenMap({"dp": 2}),
          "the weights of all tokens in the gradient, summed, over those of the single device"),
)
"""The faults, in the order in which they are run."""


def chosen(names: Sequence[str]) -> Sequence[Fault]:
    """The faults with these names; all of them without names."""
    valid = [fault.name for fault in FAULTS]
    for name in names:
        if name not in valid:
            raise InputError(f"check-torch --faults has no fault '{name}'", name=name, valid=valid)
    return [fault for fault in FAULTS if not names or fault.name in names]


@dataclass(frozen=True, slots=True)
class FaultRun:
    """What a fault did: the file's verdict and the ratio that its counterexample names, and those of the real run.

    `expected` is the ratio at the run's sizes, `ratio` the measured one, `difference` the largest of a parameter to the
    single device's after three steps of SGD.
    """

    fault: Fault
    verdict: str
    names: str
    expected: float
    ratio: float
    difference: float

    @property
    def agrees(self) -> bool:
        """Whether the file is refuted, and the run is wrong as far and in the way that the counterexample says."""
        return (self.verdict == "REFUTED" and self.difference >= LEAST
                and abs(self.ratio - self.expected) <= 1e-9 * max(1.0, abs(self.expected)))


def mean(values: Sequence[float | None]) -> float:
    """The mean of what ranks measured, those that have nothing to measure left out.

    >>> mean([1.0, None, 3.0])
    2.0
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def sizes_of(fault: Fault) -> Mapping[str, int]:
    """The sizes at which a ratio is evaluated."""
    return {**fault.mesh, "m": fault.m}
