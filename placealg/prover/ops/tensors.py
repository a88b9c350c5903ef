"""What every rank holds of the tensors of one microbatch: versions of tensors, and contributions to gradients."""

from __future__ import annotations

from typing import Any

from placealg.models.backward import differentiated, keepers
from placealg.models.graph import Graph
from placealg.prover.calculus.contribution import Value
from placealg.prover.calculus.event_ranks import left_out, pairs
from placealg.prover.calculus.positions import Pairs, at
from placealg.prover.ops import paths
from placealg.prover.ops.paths import Sum
from placealg.step.event import Event
from placealg.step.program import Reference, Step
from placealg.step.versions import Version, on_tier, origins
from placealg.strategy.vocabulary import LAYER

NEXT_INSTANCE = "the next instance"
"""The use of a repeated unit's last tensor by the next instance; the slot is the use of what enters the first one."""


Instance = tuple[dict[tuple[str, str], Sum], dict[str, Sum], dict[tuple[str, int], Pairs]]
"""What one instance of a repeated unit holds: versions of tensors, what its ops keep, and where operands are held."""


def on_some(event: Event, new: Sum, old: Sum = ()) -> Sum:
    """A value on the ranks of an event's `where`, and what the others held before."""
    return paths.chosen(new, old, pairs(event), left_out(event)) if event.where else new


class Tensors:
    """The versions of tensors, what ops kept beside their results, and gradients by version and use."""

    def __init__(self, step: Step):
        self.reference: Reference = step.reference
        self.graph: Graph = step.reference.graph
        self.made: dict[tuple[str, str], Sum] = {}
        self.beside: dict[str, Sum] = {}
        self.extents: dict[tuple[str, int], Pairs] = {}
        self.gradients: dict[tuple[str, str], dict[str, Sum]] = {}
        self.expected: dict[str, tuple[str, ...]] = {}
        self.shapes: dict[str, Pairs] = {}
        self.users: dict[tuple[str, str], set[str]] = {}
        for event in step.phase("forward"):
            if event.effect.of_op:
                for name, label in event.operands:
                    for made in filter(None, origins(label)):
                        self.users.setdefault((name, made), set()).add(event.value)

    def read(self, name: str, label: str = "") -> Sum:
        """A version of a tensor: the one that was made, or else the nearest that it derives from."""
        tensor = self.graph.tensors[name]
        if tensor.kind == "parameter":
            return paths.exact((a, at(d)) for a, d in self.reference.split_dims.get(name, {}).items() if d != LAYER)
        found = next((self.made[name, made] for made in origins(label) if (name, made) in self.made), None)
        return found if found is not None else paths.exact() if tensor.kind == "data" else ()

    def gradient(self, name: str, label: str = "") -> Sum:
        """A gradient: the sum of what was added under its label and below; uses that added nothing count nowhere.

        It is 0 if none has added anything, wherever the tensor was held.
        """
        parts = {(key[1], use): held for key, uses in self.gradients.items() for use, held in uses.items()
                 if Version(*key).derives_from(Version(name, label))}
        if not parts and not label and name in self.shapes:
            return (Value(mask=self.shapes[name]),)
        total = paths.accumulated(tuple(parts.values()))
        if label:
            return total
        missing = set(self.uses(name)) - {use for _, use in parts}
        return paths.lost(total) if missing else total

    def shape(self, name: str, held: Sum) -> None:
        """Record where a tensor is held, whatever ends it."""
        if held:
            self.shapes[name] = paths.mask_of(held)

    def uses(self, name: str) -> tuple[str, ...]:
        """The uses of a tensor that add to its gradient."""
        if name in self.expected:
            return self.expected[name]
        found = [f"{op.output}/{k}" for op in self.graph.consumers(name)
                 for k in differentiated(self.graph, op) if op.inputs[k] == name]
        found += [loop.slot for loop in self.graph.handed if loop.first == name]
        return tuple(found)

    def add(self, name: str, label: str, use: str, held: Sum) -> bool:
        """Add to a gradient; False if a use adds twice and the sum is not known.

        It is not known if the use has several classes, or has added to another version.
        """
        if any(key[0] == name and key[1] != label and use in found for key, found in self.gradients.items()):
            return False
        uses = self.gradients.setdefault((name, label), {})
        old = uses.get(use)
        if old is None:
            uses[use] = held
        elif len(old) == len(held) == 1 and old[0].mask == held[0].mask:
            uses[use] = (old[0].plus(held[0]),)
        else:
            return False
        return True

    def carry(self, event: Event) -> None:
        """Copy a version from tier to tier; where a read of it finds nothing, the copy ends."""
        source, target = event.tiers
        name, label = event.acted_on
        if source == "device":
            held = self.read(name, label) if name in self.graph.tensors else self.beside.get(name, ())
        else:
            held = next((self.made[on_tier(name, source), at] for at in origins(label)
                         if (on_tier(name, source), at) in self.made), ())
        self.settle(event, target, held)

    def settle(self, event: Event, tier: str, held: Sum) -> None:
        """What the version of an event is on a tier; nothing ends it."""
        name, label = event.acted_on
        beside = tier == "device" and name not in self.graph.tensors
        known: dict[Any, Sum] = self.beside if beside else self.made
        key = name if beside else (on_tier(name, tier), label)
        self._replace(event, known, key, held)

    def _replace(self, event: Event, known: dict[Any, Sum], key: Any, held: Sum) -> None:
        """Put a value in place of the one that a key has; what ranks keep that the event leaves out stays."""
        held = on_some(event, held, known.pop(key, ()))
        if held:
            known[key] = held

    def here(self, event: Event) -> Sum:
        """The value that a redistribution acts on."""
        if event.on_gradient:
            return self.gradient(event.tensor, event.version)
        return self.read(event.tensor, event.version)

    def put(self, event: Event, held: Sum) -> None:
        """Replace a version by a redistribution's result; for a gradient, together with all versions below it."""
        if not event.on_gradient:
            self._replace(event, self.made, (event.tensor, event.version), held)
            return
        held, label = on_some(event, held, self.here(event)), event.version
        below = [k for k in self.gradients if Version(*k).derives_from(Version(event.tensor, label))]
        uses = [use for k in below for use in self.gradients.pop(k)]
        self.gradients[event.tensor, label] = dict.fromkeys(uses, held)

    def instance(self, unit: str) -> Instance:
        """What an instance of a repeated unit holds at this point."""
        return ({k: held for k, held in self.made.items() if k[0].partition(".")[0] == unit},
                {n: held for n, held in self.beside.items() if n.partition(".")[0] == unit},
                {k: mask for k, mask in self.extents.items() if k[0].partition(".")[0] == unit})

    def again(self, unit: str, last: str) -> Instance:
        """Begin the forward of another instance of a repeated unit, which reads the last tensor of the one before.

        Returns what the one before holds, for its backward.
        """
        before = self.instance(unit)
        handed = before[0].get((last, ""))
        self.put_back(unit, ({} if handed is None else {(last, ""): handed}, {}, {}))
        return before

    def put_back(self, unit: str, instance: Instance) -> None:
        """Replace what the current instance of a unit holds by what another one held, for its backward."""
        made, beside, extents = self.instance(unit)
        for key in made:
            del self.made[key]
        for name in beside:
            del self.beside[name]
        for operand in extents:
            del self.extents[operand]
        self.made |= instance[0]
        self.beside |= instance[1]
        self.extents |= instance[2]

    def back_again(self, unit: str, last: str, gradient: Sum) -> None:
        """Begin the backward of another instance of a repeated unit, with the gradient of its last tensor."""
        for key in [k for k in self.gradients if k[0].partition(".")[0] == unit]:
            del self.gradients[key]
        self.gradients[last, ""] = {NEXT_INSTANCE: gradient}
        self.expected[last] = (NEXT_INSTANCE,)

    def free(self, event: Event) -> None:
        """End a version, or all that a region's ops in the event's unit made and no op outside reads.

        The ops that the event reads are kept, with what they keep themselves.
        """
        if event.value in self.graph.tensors or event.value in keepers(self.graph):
            self.settle(event, event.tier, ())
            return
        inside = {op.output for op in self.graph.of_unit(event.unit) if f"{op.region}.".startswith(f"{event.value}.")}
        kept = {version.tensor for version in event.operands}
        own = {name for name in inside - kept if not self._known_outside(name, inside)}
        for name, label in list(self.made):
            users = self.users.get((name, label))
            if name in own or (label and users and users <= inside):
                self._replace(event, self.made, (name, label), ())
        for name in [n for n in self.beside if n.rpartition(".")[0] in inside - kept]:
            self._replace(event, self.beside, name, ())

    def _known_outside(self, name: str, inside: set[str]) -> bool:
        """Whether an op outside reads a tensor, or it enters or leaves a repeated unit."""
        if any(op.output not in inside for op in self.graph.consumers(name)):
            return True
        return any(name in (loop.first, loop.last) for loop in self.graph.handed)
