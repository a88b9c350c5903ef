"""What `placealg explain` says of the time of a step: hypotheses of the bound, terms and parameters, machines."""

from __future__ import annotations

from collections.abc import Iterator

from placealg.cli.glosses import Explained
from placealg.cost.machines import machines
from placealg.cost.memory_hypotheses import LEAST
from placealg.cost.times import HYPOTHESES, PARAMETERS
from placealg.mesh import SYMBOLS


def times_and_machines() -> Iterator[Explained]:
    """The hypotheses under which a step takes at least what is told, the estimate's parameters, the machines."""
    for name, says in HYPOTHESES.items():
        if name not in LEAST:
            yield Explained(name, "hypothesis of time", (
                f"{says[0].upper()}{says[1:]}.", "A run that violates it may take less than `search` and `fit` say at "
                "least."), source="placealg/cost/times.py, HYPOTHESES")
    for name, value in PARAMETERS.items():
        yield Explained(name, "parameter of the estimate", (
            f"{SYMBOLS[name].meaning[0].upper()}{SYMBOLS[name].meaning[1:]}.",
            f"Where nothing is said it is {float(value):g}, a choice that is fitted to nothing.",
            "`search --assume` says another, `search --measured` fits efficiency to a step of yours."),
            source="placealg/cost/times.py, PARAMETERS")
    for machine in machines().values():
        rates = ", ".join(f"{n} {float(v):.4g}" for n, v in machine.rates.items())
        memory = "" if machine.memory is None else f", {float(machine.memory) / 10**9:g} GB each"
        yield Explained(machine.name, "machine", (
            f"{machine.title}: {machine.per_node} devices to a node{memory}.",
            f"Flop and bytes a second: {rates}; links one way.", f"Found again: {machine.checked}."),
            source=machine.source)
