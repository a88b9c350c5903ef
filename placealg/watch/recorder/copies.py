"""Copies: tensors that an optimizer updates in place of the parameters, followed element by element.

A wrapper may train flat copies of the elements that a rank owns, as DeepSpeed's ZeRO does. Whose gradient an element of
a copy reads is told by the op of backward that made it: hooks say which elements of which parameter's gradient that op
made. Where its new value goes is told by the origin of the parameters' elements at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from placealg.watch.recorder.chains import hops_of, terms_of, walk, walk_update
from placealg.watch.recorder.gradients import Gradients
from placealg.watch.recorder.mode import Recorder
from placealg.watch.recorder.nodes import Node
from placealg.watch.recorder.parameters import local
from placealg.watch.recorder.shadows import PLACES, nodes_of
from placealg.watch.seen import Hop, Term


@dataclass
class Claim:
    """The elements of one copy whose gradient is a parameter's, by their places in the copy."""

    copy: int
    here: Tensor
    terms: tuple[Term, ...]
    wrong: str


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

    def __init__(self, parameters: Mapping[str, Tensor], gradients: Gradients):
        self.parameters, self.gradients = parameters, gradients
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        self.tensors: list[Tensor] = []
        self.old: set[int] = set()
        self.claims: dict[str, Claim] = {}
        self.lost = False

    def read(self, recorder: Recorder, tensors: list[Tensor]) -> None:
        """Keep whose gradient each element of the tensors reads, and by which way it came."""
        for tensor in tensors:
            self.old.update(nodes_of(recorder.shadows.region(local(tensor).detach())[0]))
            if tensor.grad is not None:
                self._claims(recorder, tensor, local(tensor.grad))

    def _claims(self, recorder: Recorder, tensor: Tensor, grad: Tensor) -> None:
        recorder._check([grad], None)
        region = tuple(t.flatten().clone() for t in recorder.shadows.region(grad))
        own = region[0], region[1]
        known, found = own[0] == 0, self.gradients.places(recorder, own)
        origin, factor = recorder.shadows.region(grad)
        flat = torch.zeros(grad.numel(), dtype=torch.int64)
        for name, mine in found.items():
            here = (mine >= 0).nonzero().flatten()
            self.lost = self.lost or name in self.claims or bool(known[here].any())
            known[here] = True
            terms, wrong = terms_of(recorder, (own[0][here], own[1][here]))
            self.claims[name] = Claim(len(self.tensors), here, terms, wrong)
            node = recorder.add(Node("read", name, "update", sources=(own,)))
            flat[here] = here + (node << PLACES)
        self.lost = self.lost or not bool(known.all())
        origin.copy_(flat.view(origin.shape))
        factor.fill_(1.0)
        self.tensors.append(tensor)

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
        beside = {n for n, c in self.claims.items() if claim is not None and c.copy == claim.copy}
        for number, _, times, places, steps in walk(recorder, recorder.shadows.region(mine), ("message",)):
            node, way = recorder.nodes[number], tuple(index for _, index in steps)
            count += places.numel()
            if node.kind == "param" or number in self.old:
                stale = True
            elif bool((times != 1).any()):
                return Update((), (), True, "a number by which new values are multiplied")
            elif node.kind == "message" and way:
                published.add(way)
            elif walk_update(recorder, number, name, paths, set(), beside) != "update":
                return Update((), (), False, node.name)
            else:
                published.add(way)
        if count < mine.numel():
            return Update((), (), True, "zeros that stand for new values")
        ways = {tuple((recorder.messages[k].verb, recorder.messages[k].axes) for k in way) for way in published}
        if len(ways) > 1:
            return Update((), (), True, "new values that are published in several ways")
        return Update(hops_of(recorder, paths), hops_of(recorder, published), bool(published) and not stale, "")
