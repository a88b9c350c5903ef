"""What each op does to elements of the field."""

from placealg.watch.lift.rules import elementwise, moves, optimizers, sums
from placealg.watch.lift.rules.call import RULES, Call, Chance, Values
from placealg.watch.lift.rules.elementwise import listed

__all__ = ["RULES", "Call", "Chance", "Values", "elementwise", "listed", "moves", "optimizers", "sums"]
