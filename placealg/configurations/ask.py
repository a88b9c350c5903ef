"""A search asked in Python: words become a question, and what a space leaves out is decided first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from placealg.configurations.found import Found
from placealg.configurations.layouts import Devices
from placealg.configurations.left_out import decided
from placealg.configurations.modes import expanded
from placealg.configurations.question import Question
from placealg.configurations.run import search
from placealg.configurations.space import Space, spaces
from placealg.cost.expressions import exact_size
from placealg.cost.machines import Machine
from placealg.cost.machines import machine as named
from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.model import Model

_AMOUNT = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?) ?(GB|GiB|MB|MiB|TB)")
_UNITS = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "TB": 10**12}


def ask(model: Model | str, devices: int, batch: int | Sequence[int], machine: Machine | str, memory: str | None,
        space: Space | str, only: tuple[str, ...] | str, executor: Any, cache: Path | None,
        precision: str, sizes: Mapping[str, Any]) -> Found:
    """The outcome of a search; what is of the wrong kind is an InputError."""
    need(model, (str, Model), "name of a model and no Model")
    need(machine, (str, Machine), "name of a machine and no Machine")
    need(space, (str, Space), "name of a space and no Space")
    need(memory, (str, type(None)), "amount of memory, such as '80GB'")
    only = (only,) if isinstance(only, str) else only
    need(only, (tuple, list), "list of patterns of strategies")
    for pattern in only:
        need(pattern, str, "pattern of strategies")
    batches = (batch,) if isinstance(batch, int) else batch
    need(batches, (tuple, list), "number of sequences")
    for name, number in (("devices", devices), *(("batch", one) for one in batches)):
        if not isinstance(number, int) or number < 1:
            raise InputError(f"{name} = {number!r} is not a whole number of at least 1")
    model = resolve_model(model) if isinstance(model, str) else model
    on = machine if isinstance(machine, Machine) else named(machine)
    if isinstance(space, str):
        if space not in spaces():
            raise InputError(f"no space is called '{space}'", name=space, valid=spaces())
        space = spaces()[space]
    need(precision, str, "name of a precision, such as 'megatron'")
    space = expanded(space, model, cache).precisely(precision.replace("-", "_"))
    limit = on.memory
    if memory is not None:
        told = _AMOUNT.fullmatch(memory)
        if not told:
            raise InputError(f"'{memory}' is no amount of memory, such as 80GB")
        limit = Fraction(told[1]) * _UNITS[told[2]]
    if limit is None:
        raise InputError("the machine has no memory: say memory=")
    asked = replace(space, only=tuple(only)) if only else space
    asked, _ = decided(asked, model, cache)
    exact = FrozenMap({n: exact_size(n, v) for n, v in sizes.items()})
    if not batches:
        raise InputError("batch names no number of sequences")
    first, *more = batches
    on_these = Devices(devices, on.per_node, first, tuple(more))
    return search(Question(model, on_these, on, limit, asked, exact), cache, executor)
