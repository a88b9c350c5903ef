"""What each op does to elements of the field."""

from placealg.watch.lift.rules import elementwise, optimizers, sums, windows
from placealg.watch.lift.rules import moves as _moves
from placealg.watch.lift.rules.call import RULES, Call, Chance, Values
from placealg.watch.lift.rules.elementwise import listed


def moves(name: str) -> bool:
    """Whether an op puts elements elsewhere, as they are."""
    return name in RULES and (RULES[name].__module__ == _moves.__name__ or name in ("where", "masked_fill"))


__all__ = ["RULES", "Call", "Chance", "Values", "elementwise", "listed", "moves", "optimizers", "sums", "windows"]
