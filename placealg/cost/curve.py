"""A formula as a function of one size, with numbers for the others: exact values, and the sizes that keep it small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from placealg.cost.plain import ONE, plain, put
from placealg.errors import InputError
from placealg.polynomial import CALL, Plain, Polynomial

if TYPE_CHECKING:
    from placealg.cost.formula import Formula

SCANNED = 4096
"""The size up to which sizes are tried one by one if a formula is not known to fall."""

_BEYOND = 2**40

Piece = Mapping[int, Fraction]
"""Power of the size -> coefficient."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A function of the size `name`; `pieces` are the sums whose maximum it is, empty if it is no such maximum.

    >>> from placealg.cost.formula import Formula
    >>> held = Formula.parse("Psi*(w + g)/dp + b*Max(s, 6)", "bytes", values={"w": 2, "g": 2})
    >>> at = {"Psi": Fraction(100), "dp": Fraction(4), "b": Fraction(1), "s": Fraction(10)}
    >>> curve(held, "b", at).largest(Fraction(139)), curve(held, "dp", at).smallest(Fraction(70), ())
    (3, 7)
    """

    name: str
    plain: Plain
    pieces: tuple[Piece, ...]

    def __call__(self, size: int) -> Fraction:
        """The exact value."""
        if self.pieces:
            return max(_at(piece, size) for piece in self.pieces)
        return self.plain.evaluate({self.name: size})

    def line(self, size: int) -> tuple[Fraction, Fraction] | None:
        """The constant and the slope of the piece that is largest at a size, if it is linear."""
        if not self.pieces:
            return None
        piece = max(self.pieces, key=lambda p: _at(p, size))
        return (piece.get(0, Fraction(0)), piece.get(1, Fraction(0))) if set(piece) <= {0, 1} else None

    @property
    def falls(self) -> bool:
        """Whether its pieces show that it never grows with the size."""
        return bool(self.pieces) and all((c >= 0) if p < 0 else (c <= 0)
                                         for piece in self.pieces for p, c in piece.items() if p)

    @property
    def floor(self) -> Fraction | None:
        """The limit of a falling function for large sizes; None if that is not known."""
        if not self.falls or any(p > 0 and c for piece in self.pieces for p, c in piece.items()):
            return None
        return max(piece.get(0, Fraction(0)) for piece in self.pieces)

    def largest(self, limit: Fraction) -> int | None:
        """The largest size at which it is at most `limit`; 0 if there is none, None if there is no largest.

        Each piece is solved; one of a degree above 1 must grow with the size. It is an InputError if there are no
        pieces.
        """
        if not self.pieces or any(p < 0 for piece in self.pieces for p in piece):
            raise InputError(f"what is held is no maximum of polynomials in {self.name}")
        tops = [_top(piece, limit, self.name) for piece in self.pieces]
        bounds = [top for top in tops if top is not None]
        if not bounds:
            return None if self(1) <= limit else self._none()
        best = min(bounds)
        return best if best >= 1 and self(best) <= limit else self._none()

    def _none(self) -> int:
        """The answer that no size is small enough; an InputError if a larger size might be."""
        if any(c < 0 for piece in self.pieces for p, c in piece.items() if p > 0):
            raise InputError(f"what is held falls with {self.name}")
        return 0

    def smallest(self, limit: Fraction, allowed: Iterable[int]) -> int | None:
        """The smallest size at which it is at most `limit`, among those `allowed` (all, if none are listed); else None.

        If it is not known to fall, sizes up to SCANNED are tried.
        """
        listed = sorted(allowed)
        if listed or not self.falls:
            return next((n for n in listed or range(1, SCANNED + 1) if self(n) <= limit), None)
        if self(1) <= limit:
            return 1
        low, high = 1, _BEYOND
        if self(high) > limit:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self(middle) <= limit else (middle, high)
        return high


def _top(piece: Piece, limit: Fraction, name: str) -> int | None:
    """The largest size at which a piece is at most `limit`; None if no size is too large, 0 if all are."""
    rising = {p: c for p, c in piece.items() if p and c}
    if not rising:
        return None if piece.get(0, Fraction(0)) <= limit else 0
    if set(rising) == {1}:
        slope, room = rising[1], limit - piece.get(0, Fraction(0))
        return None if slope < 0 else max(int(room // slope), 0)
    if any(c < 0 for c in rising.values()):
        raise InputError(f"what is held neither grows with {name} nor is linear in it")
    low, high = 0, 1
    while _at(piece, high) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at(piece, middle) <= limit else (low, middle)
    return low


def _at(piece: Piece, size: int) -> Fraction:
    return sum((c * Fraction(size) ** p for p, c in piece.items()), Fraction(0))


def curve(formula: Formula, name: str, sizes: Mapping[str, Fraction]) -> Curve:
    """The formula as a function of `name` at the other sizes and the defaults; an InputError if one is missing."""
    known = {n: v for n, v in {**formula.values, **sizes}.items() if n != name}
    check_known(formula, {**known, name: Fraction(1)})
    found = plain(put(formula, known))
    return Curve(name, found, tuple(_pieces(found, name)))


def check_known(formula: Formula, sizes: Mapping[str, Fraction]) -> None:
    """Raise InputError unless every size on which a formula depends is known."""
    missing = [n for n in formula.inputs if n not in {**formula.values, **sizes} and n not in formula.defined]
    if missing:
        raise InputError(f"what is held depends on {', '.join(missing)}: {missing[0]} needs a number "
                         f"(--set {missing[0]}=...)")


def _pieces(found: Plain, name: str) -> list[Piece]:
    """The sums whose maximum the data is, each by powers of the size."""
    pieces: list[Piece] = []
    for total in spread(found) if found.denominator == ONE else ():
        piece = {dict(m.powers).get(name, 0): c for m, c in total.terms.items()}
        if piece not in pieces:
            pieces.append(piece)
    return pieces


def spread(found: Plain) -> list[Polynomial]:
    """The sums whose maximum the numerator is; none with a function other than Max, or a Max of negative factor.

    >>> from placealg.cost.expressions import expression
    >>> spread(plain(expression("dp + Max(h, 2*b)")))
    [2*b + dp, dp + h]
    """
    if any(c.function != "Max" for c in found.calls):
        return []
    sums = [found.numerator]
    for call in reversed(found.calls):
        every: list[Polynomial] = []
        for total in sums:
            factor = total.coefficient(call.name)
            if any(f.coefficient < 0 or any(CALL in n for n in f.names()) for f in factor.monomials()):
                return []
            every += [total.without(call.name) + factor * argument for argument in call.arguments] \
                if factor.terms else [total]
        sums = every
    return sums
