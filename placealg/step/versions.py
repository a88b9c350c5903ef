"""Versions of tensors: a tensor as its op made it, or a copy that redistributions made, known by its label.

A label records how a copy was derived: T@tp from T, T@tp/cp from T@tp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LEFT_OUT = "none"
"""The label of an operand that is left out: the op runs without it."""

ONCE = "once"
"""The label of weights of which a count takes no sum: it counts each token that has one once."""


def on_tier(name: str, tier: str) -> str:
    """The name under which a copy of a tensor on a tier is known.

    >>> on_tier("layer.in", "device"), on_tier("layer.in", "host")
    ('layer.in', 'layer.in on host')
    """
    return name if tier == "device" else f"{name} on {tier}"


class Version(NamedTuple):
    """A tensor, or a tensor's gradient, under a label; "" is what its op made.

    >>> Version.parse("layer.norm1.out@tp"), Version.parse("layer.in")
    (layer.norm1.out@tp, layer.in)
    """

    tensor: str
    label: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        """A version as events write it: NAME or NAME@LABEL."""
        tensor, _, label = text.partition("@")
        return cls(tensor, label)

    @property
    def text(self) -> str:
        """The version as events write it."""
        return f"{self.tensor}@{self.label}" if self.label else self.tensor

    def __repr__(self) -> str:
        return self.text

    def origins(self) -> Iterator[Version]:
        """The version and those from which it derives, ending with what the op made.

        >>> list(Version("x", "tp/cp").origins())
        [x@tp/cp, x@tp, x]
        """
        return (Version(self.tensor, label) for label in origins(self.label))

    def derives_from(self, other: Version) -> bool:
        """Whether it is the other version, or derives from it.

        >>> Version("x", "tp/cp").derives_from(Version("x", "tp")), Version("x", "tp2").derives_from(Version("x", "tp"))
        (True, False)
        """
        return self.tensor == other.tensor and (
            not other.label or self.label == other.label or self.label.startswith(f"{other.label}/"))

    @property
    def source(self) -> Version:
        """The version from which it was derived.

        >>> Version("x", "tp/cp").source, Version("x").source
        (x@tp, x)
        """
        return Version(self.tensor, self.label.rpartition("/")[0])


def origins(label: str) -> Iterator[str]:
    """The label of a version and the labels from which it derives, ending with "", the tensor's own.

    >>> list(origins("tp/cp"))
    ['tp/cp', 'tp', '']
    """
    while label:
        yield label
        label = label.rpartition("/")[0]
    yield ""
