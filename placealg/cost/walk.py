"""The program of one device, walked over once: every figure of its cost is read off this walk.

`Walk` holds what several figures share: the amounts of its parameter groups, the states that are held at every event,
the tensors that one microbatch makes, and which moments of both can be the largest.
"""

from __future__ import annotations

from functools import cached_property

from placealg.cost.account import Account
from placealg.cost.activations import Activations, Picture
from placealg.cost.amounts import Amounts, Tally
from placealg.cost.divisibility import Divides
from placealg.cost.peak import Held, beyond, largest_held
from placealg.cost.stage import StageStep, local
from placealg.cost.storages import DEVICE
from placealg.cost.unsupported import unknown
from placealg.step.program import Step

STATES = {"parameters": ("weight",), "optimizer": ("master", "moments", "average"), "gradients": ("grad", "grad_sum")}
"""State -> its values."""


class Walk:
    """What is read off one program, each thing once; with a pipeline, off its first stage's program.

    `statistics` counts the row statistics that norms keep for backward; `rules` are those of the formulas.

    >>> import placealg as pa
    >>> walk = Walk(pa.derive(pa.zero3(), pa.abstract()))
    >>> [buffer[2] for buffer in walk.rest if buffer[1] == "one"], len(walk.peak)
    (['w', '4', 'o - 4', 'g'], 1)
    """

    def __init__(self, step: Step, statistics: bool = False, rules: tuple[Divides, ...] = ()):
        self.step, self.statistics, self.rules = local(step), statistics, rules

    @property
    def unknown(self) -> str:
        """Why nothing is known of the tensors of a microbatch; "" where they are."""
        return unknown(self.step.reference)

    @property
    def every_stage(self) -> Step:
        """The step to which a stage's program belongs, or the program itself."""
        return self.step.every_stage if isinstance(self.step, StageStep) else self.step

    @cached_property
    def amounts(self) -> Amounts:
        """The amounts of its parameter groups."""
        return Amounts(self.step.reference, self.rules)

    @cached_property
    def account(self) -> Account:
        """The states that are held, event by event."""
        return Account(self.step)

    @cached_property
    def tensors(self) -> Activations:
        """The tensors of one microbatch; none where nothing is known of them."""
        return Activations(self.step, self.amounts, self.statistics)

    @cached_property
    def rest(self) -> Tally:
        """The buffers that a device holds at a step boundary."""
        return self.account.rest()

    @cached_property
    def resting(self) -> dict[str, Tally]:
        """State -> its buffers at a step boundary."""
        return {state: self.account.rest(values) for state, values in STATES.items()}

    @cached_property
    def transient(self) -> list[Held]:
        """The candidates for the most that is held of states, less what rests; what replaces a shard counts once."""
        pictures = self.account.pictures("device").distinct
        most = largest_held(self.amounts, [(states, Picture()) for states in (self.rest, *pictures)])
        return [(beyond(states, self.rest), Picture()) for states, _ in most]

    @cached_property
    def peak(self) -> list[Held]:
        """The candidates for the most that the device holds of states and tensors."""
        return self.on_tier(DEVICE)

    def on_tier(self, tier: str) -> list[Held]:
        """The candidates for the most that a tier holds for the device."""
        states = self.account.pictures(tier)
        tensors = self.account.tensors(self.tensors, tier)
        pairs = dict.fromkeys((number, tensors.which[view.visit])
                              for view, number in zip(self.account.views, states.which, strict=True))
        return largest_held(self.amounts, [(states.distinct[k], tensors.distinct[n]) for k, n in pairs])


def walked(program: Step | Walk, statistics: bool = False) -> Walk:
    """The walk over a program, or the given walk."""
    return program if isinstance(program, Walk) else Walk(program, statistics)
