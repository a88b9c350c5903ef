"""The step program: its events, its derivation from a strategy and a model, its text and its edits."""

from placealg.step.derive import derive
from placealg.step.program import Event, Group, Reference, Rule, Step

__all__ = ["Event", "Group", "Reference", "Rule", "Step", "derive"]
