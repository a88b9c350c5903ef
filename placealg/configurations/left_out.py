"""What a space leaves out, and the claims on which that rests, decided for all sizes on the model of the search."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from placealg.check.claims import Side, decide_claim
from placealg.configurations.programs import sources
from placealg.configurations.space import PRECISION, LeftOut, Space
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.progress import say
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy, words

CLAIMS = ("memory.peak <=", "communication.total <=")
"""What is decided of the better against the worse of a pair."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A choice that is left out, and the verdict of each claim."""

    pair: LeftOut
    verdicts: tuple[str, ...]

    @property
    def proved(self) -> bool:
        """Whether all claims are proved."""
        return all(verdict == PROVED for verdict in self.verdicts)


def decided(space: Space, model: Model, folder: Path | None = None) -> tuple[Space, tuple[Decided, ...]]:
    """The space with what may not be left out of it, and the verdicts on all that it wants to leave out.

    A choice stays out if all claims are proved; otherwise it stands beside the better one. What no strategy of the
    space has instead is not asked about. `folder` keeps the verdicts that were found.

    >>> from placealg.models.transformer import gpt
    >>> pair = LeftOut("zero2", "zero1")
    >>> space, found = decided(Space("small", FrozenMap({"data": ("zero1",)}), left_out=(pair,)), gpt())
    >>> found[0].verdicts, space.parts["data"]
    (('REFUTED', 'PROVED'), ('zero1', 'zero2'))
    """
    every = {word for expression in space.choices() for word in words(expression)}
    said = space.parts.get(PRECISION, ("",))
    found = tuple(Decided(pair, tuple(v for name in said for v in _verdicts(_precise(pair, name), model, folder)))
                  for pair in space.left_out if pair.better in every)
    parts = dict(space.parts)
    for one in found:
        for part, choices in parts.items():
            if one.pair.better in choices and not one.proved:
                parts[part] = tuple(dict.fromkeys((*choices, one.pair.worse)))
    return replace(space, parts=FrozenMap(parts)), found


def _precise(pair: LeftOut, name: str) -> LeftOut:
    """The pair with the bytes per element of a preset, "" for those that it has."""
    return LeftOut(f"{pair.worse}*{name}", f"{pair.better}*{name}") if name else pair


def _verdicts(pair: LeftOut, model: Model, folder: Path | None) -> tuple[str, ...]:
    key = sha256(f"{sources()}{model!r}{pair}{CLAIMS}".encode()).hexdigest()[:24]
    file = folder / f"{key}.json" if folder else None
    try:
        kept = json.loads(file.read_text()) if file else None
        if isinstance(kept, list) and len(kept) == len(CLAIMS):
            return tuple(map(str, kept))
    except (OSError, ValueError):
        pass
    say(f"{pair.better} against {pair.worse}")
    found = tuple(_all(pair, model))
    if file:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found))
        except OSError:
            pass
    return found


def _all(pair: LeftOut, model: Model) -> Iterable[str]:
    try:
        better, worse = (Side(s, derive(s, model), {}, model) for s in map(parse_strategy, (pair.better, pair.worse)))
    except InputError as error:
        return [str(error)] * len(CLAIMS)
    return [str(decide_claim(better, worse, claim).verdict) for claim in CLAIMS]
