"""The random streams that differ between ranks: `rank(AXIS)`, keyed by the coordinate, `local(DIM)`, by a local index.

A stream that is not named is keyed by logical coordinates, so that every rank draws what the single device draws.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from placealg.errors import InputError

_TEXT = re.compile(r"(rank|local)\((\w+)\)\Z")


@dataclass(frozen=True, slots=True)
class Stream:
    """What keys a stream beside the logical coordinates: the rank along an axis, or the local index of a dim.

    >>> Stream.parse("rank(dp)"), str(Stream(dim="batch")), Stream.parse("local(batch)").over_microbatches
    (Stream(axis='dp', dim=''), 'local(batch)', True)
    """

    axis: str = ""
    dim: str = ""

    @classmethod
    def parse(cls, text: str) -> Stream:
        """The stream of a strategy file's text; an InputError where it is none."""
        found = _TEXT.match(text)
        if not found:
            raise InputError(f"'{text}' is no random stream; valid: rank(AXIS), local(DIM)")
        return cls(axis=found[2]) if found[1] == "rank" else cls(dim=found[2])

    def __str__(self) -> str:
        return f"rank({self.axis})" if self.axis else f"local({self.dim})"

    @property
    def over_microbatches(self) -> bool:
        """Whether the stream begins anew with each microbatch: a local index of the batch does."""
        return self.dim == "batch"
