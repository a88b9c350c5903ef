"""Copies: tensors that an optimizer updates in place of the parameters, followed element by element.

A wrapper may train flat copies of the elements that a rank owns, as DeepSpeed's ZeRO does. Whose gradient an element of
a copy reads is told by the op of backward that made it: hooks say which elements of which parameter's gradient that op
made. Where its new value goes is told by the origin of the parameters' elements at the end. Both must name the same
element, and a copy must hold its parameters' numbers when it is updated; else nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from placealg.watch.recorder.chains import hops_of, terms_of, walk, walk_update
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.nodes import Node
from placealg.watch.recorder.parameters import first_place, local, whole_shape
from placealg.watch.recorder.shadows import PLACES, Region, nodes_of
from placealg.watch.seen import Hop, Term

Made = tuple[str, Tensor, Tensor]
"""(parameter, places in what an op of backward made, places in the parameter's gradient)."""


@dataclass
class Claim:
    """The elements of one copy whose gradient is a parameter's: places in the copy, places in the whole parameter."""

    copy: int
    here: Tensor
    there: Tensor
    terms: tuple[Term, ...]
    wrong: str
    apart: bool


class Update(NamedTuple):
    """Where a new value comes from: reductions inside the update, collectives after it; whether there was an update.

    `unseen` is what could not be followed.
    """

    inside: tuple[Hop, ...]
    after: tuple[Hop, ...]
    updated: bool
    unseen: str


class Copies:
    """The copies that optimizers were seen to update, and what is known of their elements."""

    def __init__(self, parameters: Mapping[str, Tensor]):
        self.parameters = parameters
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        self.gradients: list[tuple[str, Region]] = []
        self.tensors: list[Tensor] = []
        self.old: set[int] = set()
        self.claims: dict[str, Claim] = {}
        self.lost = False

    def listen(self, recorder: Recorder) -> Iterator[Any]:
        """Hear of every gradient of a parameter before it is accumulated; the handles of the hooks."""
        def heard(name: str) -> Any:
            def keep(grad: Tensor) -> None:
                with _disable_current_modes():
                    origin, factor = recorder.shadows.region(local(grad))
                    self.gradients.append((name, (origin.flatten().clone(), factor.flatten().clone())))
            return keep

        for name, parameter in self.parameters.items():
            if parameter.is_leaf:
                yield parameter.register_hook(heard(name))

    def read(self, recorder: Recorder, tensors: list[Tensor]) -> None:
        """Keep whose gradient each element of the tensors reads, and by which way it came."""
        index = self._index(recorder)
        for tensor in tensors:
            self.old.update(nodes_of(recorder.shadows.region(local(tensor).detach())[0]))
            if tensor.grad is not None:
                self._claims(recorder, tensor, local(tensor.grad), index)

    def _index(self, recorder: Recorder) -> dict[int, list[Made]]:
        """Op of backward, as a node -> the elements of gradients that it made."""
        found: dict[int, list[Made]] = {}
        for name, region in self.gradients:
            for number, where, _, places, _ in walk(recorder, region):
                found.setdefault(number, []).append((name, where, places))
        return found

    def given(self, recorder: Recorder) -> dict[str, tuple[tuple[Term, ...], str]]:
        """Parameter -> the terms of those elements of its gradient that go to other ranks, and what is wrong with them.

        They are followed as far as the last reduction that takes them.
        """
        index, terms, seen = self._index(recorder), dict[str, dict[int, tuple[Term, ...]]](), dict[str, Tensor]()
        wrong: dict[str, str] = {}
        reduced = [n for n in recorder.nodes if n.kind == "message" and n.sources
                   and recorder.messages[n.message].verb in ("all_reduce", "reduce_scatter")]
        for node in reduced:
            message, source = recorder.messages[node.message], node.sources[0]
            for name, there in self._places(recorder, source, index).items():
                mask = seen.setdefault(name, torch.zeros(whole_shape(self.parameters[name]).numel()) > 0)
                other = there >= 0
                if name in self.claims:
                    owned = torch.zeros_like(mask)
                    owned[self.claims[name].there] = True
                    other &= ~owned[there.clamp(min=0)]
                if not bool(other.any()):
                    continue
                mask[there[other]] = True
                found, bad = terms_of(recorder, (source[0].flatten()[other], source[1].flatten()[other]))
                wrong[name] = wrong.get(name) or bad
                hop = Hop(message.verb, message.axes, message.op, message.index, line=message.line)
                passed = {h.message for t in found for h in t.hops if h.verb != "scale"}
                kept = {k: v for k, v in terms.get(name, {}).items() if k not in passed}
                terms[name] = {**kept, message.index: tuple(replace(t, hops=(*t.hops, hop)) for t in found)}
        every = {}
        for name, parameter in self.parameters.items():
            own = self.claims[name].here.numel() if name in self.claims else 0
            count = own + (int(seen[name].sum()) if name in seen else 0)
            lost = "" if count == whole_shape(parameter).numel() else "where a part of its gradient goes"
            every[name] = (tuple(t for ts in terms.get(name, {}).values() for t in ts), wrong.get(name) or lost)
        return every

    def _places(self, recorder: Recorder, region: Region, index: Mapping[int, list[Made]]) -> dict[str, Tensor]:
        """Parameter -> of each element of a region the place in it of the element whose gradient that is; -1 if none.

        An element that is the gradient of several places makes everything lost.
        """
        found: dict[str, Tensor] = {}
        for number, where, _, places, _ in walk(recorder, region):
            for name, made, at in index.get(number, ()):
                table = torch.full((int(max(made.max(), where.max())) + 1,), -1, dtype=torch.int64)
                table[made] = at
                got = table[where]
                mine = found.setdefault(name, torch.full((region[0].numel(),), -1, dtype=torch.int64))
                here, there = places[got >= 0], got[got >= 0]
                self.lost = self.lost or bool(((mine[here] >= 0) & (mine[here] != there)).any())
                mine[here] = there
        return found

    def _claims(self, recorder: Recorder, tensor: Tensor, grad: Tensor, index: Mapping[int, list[Made]]) -> None:
        recorder._check([grad], None)
        region = tuple(t.flatten().clone() for t in recorder.shadows.region(grad))
        own = region[0], region[1]
        known, found = own[0] == 0, self._places(recorder, own, index)
        origin, factor = recorder.shadows.region(grad)
        flat = torch.zeros(grad.numel(), dtype=torch.int64)
        for name, mine in found.items():
            here = (mine >= 0).nonzero().flatten()
            self.lost = self.lost or name in self.claims or bool(known[here].any())
            known[here] = True
            terms, wrong = terms_of(recorder, (own[0][here], own[1][here]))
            self.claims[name] = Claim(len(self.tensors), here, mine[here], terms, wrong,
                                      self._apart(name, tensor, here, mine[here]))
            node = recorder.add(Node("read", name, "update", sources=(own,)))
            flat[here] = here + (node << PLACES)
        self.lost = self.lost or not bool(known.all())
        origin.copy_(flat.view(origin.shape))
        factor.fill_(1.0)
        self.tensors.append(tensor)

    def _apart(self, name: str, tensor: Tensor, here: Tensor, there: Tensor) -> bool:
        """Whether a copy holds other numbers than the parameter's elements on this rank, before it is updated."""
        parameter = self.parameters[name]
        mine = local(parameter).detach().flatten()
        inside = there - first_place(parameter)
        held = (inside >= 0) & (inside < mine.numel())
        values = local(tensor).detach().flatten()[here[held]].to(mine.dtype)
        return not bool((values == mine[inside[held]]).all())

    def check(self, recorder: Recorder) -> None:
        """Whether memory of a copy was written behind the dispatcher."""
        for tensor in self.tensors:
            recorder._check([local(tensor.detach())], None)

    def update(self, recorder: Recorder, name: str) -> Update:
        """Where the new value of a parameter comes from: from its elements in the copies, here and on other ranks."""
        parameter, claim = self.parameters[name], self.claims.get(name)
        mine = local(parameter).detach()
        paths: set[tuple[int, ...]] = set()
        published: set[tuple[int, ...]] = set()
        stale, count = False, 0
        pairs: list[Tensor] = []
        homes = self._homes(recorder, claim.copy) if claim else {}
        for number, where, times, places, steps in walk(recorder, recorder.shadows.region(mine), ("message",)):
            node, way = recorder.nodes[number], tuple(index for _, index in steps)
            count += places.numel()
            if node.kind == "param" or number in self.old:
                stale = True
            elif bool((times != 1).any()):
                return Update((), (), True, "a number by which new values are multiplied")
            elif node.kind == "message" and way:
                published.add(way)
            elif number in homes and int(where.max()) < homes[number].numel():
                at = homes[number][where]
                pairs.append(torch.stack([at, places + first_place(parameter)], 1))
                if walk_update(recorder, number, name, paths, set()) != "update":
                    return Update((), (), False, node.name)
                published.add(way)
            else:
                return Update((), (), False, node.name)
        if count < mine.numel():
            return Update((), (), True, "zeros that stand for new values")
        if not stale and not self._same(claim, pairs):
            return Update((), (), True, "what is written to other elements than those whose gradient was read")
        ways = {tuple((recorder.messages[k].verb, recorder.messages[k].axes) for k in way) for way in published}
        if len(ways) > 1:
            return Update((), (), True, "new values that are published in several ways")
        return Update(hops_of(recorder, paths), hops_of(recorder, published), bool(published) and not stale, "")

    def _homes(self, recorder: Recorder, copy: int) -> dict[int, Tensor]:
        """Node -> the place in a copy of each element that it made, as the copy stands now."""
        found: dict[int, Tensor] = {}
        region = recorder.shadows.region(local(self.tensors[copy]).detach())
        for number, where, _, places, _ in walk(recorder, region, ()):
            table = found.setdefault(number, torch.full((int(where.max()) + 1,), -1, dtype=torch.int64))
            if table.numel() <= int(where.max()):
                table = torch.cat([table, torch.full((int(where.max()) + 1 - table.numel(),), -1, dtype=torch.int64)])
            table[where] = places
            found[number] = table
        return found

    @staticmethod
    def _same(claim: Claim | None, pairs: list[Tensor]) -> bool:
        """Whether the new values come from the elements whose gradient was read, each from its own."""
        got = torch.cat(pairs) if pairs else torch.zeros((0, 2), dtype=torch.int64)
        if claim is None:
            return not got.numel()
        want = torch.stack([claim.here, claim.there], 1)
        return got.shape == want.shape and bool((got[got[:, 0].argsort()] == want[want[:, 0].argsort()]).all())
