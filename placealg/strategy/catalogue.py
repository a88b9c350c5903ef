"""The catalogue: named strategies as data, and their instantiation on axes.

Every entry is read from `catalogue.toml`, which says placements and schedules and nothing else.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.strategy.spec import Strategy, strategy_on

KINDS = ("axis", "modifier")


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry: default axes, tables over them, the published source, other names.

    An entry of kind `axis` brings axes; a `modifier` brings none and applies to what stands to its left. Axes of one
    that `joins` share the states that a factor beside them shards.
    """

    name: str
    title: str
    source: str
    axes: tuple[str, ...]
    tables: FrozenMap[str, Any]
    aliases: tuple[str, ...]
    kind: str
    joins: bool


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Entry]:
    """Every entry by name, in the order of the catalogue.

    >>> catalogue()["zero3"].aliases
    ('fsdp',)
    """
    text = files("placealg.strategy").joinpath("catalogue.toml").read_text(encoding="utf-8")
    entries = (Entry(name, said["title"], said["source"], tuple(said.get("axes", ())), FrozenMap(said["tables"]),
                     tuple(said.get("aliases", ())), said["kind"], said.get("joins", False))
               for name, said in tomllib.loads(text).items())
    return FrozenMap({entry.name: entry for entry in entries})


def entry(name: str) -> Entry:
    """The entry called `name`, or that has it as an alias."""
    for candidate in catalogue().values():
        if name == candidate.name or name in candidate.aliases:
            return candidate
    raise InputError(f"unknown strategy '{name}'", name=name, valid=names())


def names() -> tuple[str, ...]:
    """Every name that an expression may use, aliases included."""
    return tuple(n for e in catalogue().values() for n in (e.name, *e.aliases))


def instantiate(name: str, *axes: str | int | Axis, **sizes: int | None) -> Strategy:
    """The catalogue strategy `name` on axes: renamed in order by strings, sized by numbers or `axis=size`.

    The result's name is the expression that recreates it.

    >>> instantiate("zero3").name, instantiate("zero3", "fsdp").name, instantiate("zero3", dp=8).name
    ('zero3', 'zero3[fsdp]', 'zero3[8]')
    >>> instantiate("hsdp", dp_shard=4).mesh.axes
    (dp_replicate, dp_shard=4)
    """
    found = entry(name)
    said = [a if isinstance(a, Axis) else Axis(a) if isinstance(a, str) else a for a in axes]
    bound = _assign(found, [*said, *(Axis(axis, size) for axis, size in sizes.items())])
    renamed = dict(zip(found.axes, (a.name for a in bound), strict=True))
    tables = {table: _renamed(value, renamed) for table, value in found.tables.items()}
    strategy = strategy_on(_expression(name, found, bound), {a.name: a.size for a in bound}, **tables)
    return replace(strategy, modifiers=(found.name,) if found.kind == "modifier" else (),
                   joins=strategy.mesh.names if found.joins else ())


def _assign(found: Entry, said: list[Axis | int]) -> tuple[Axis, ...]:
    if len(said) > len(found.axes):
        takes = f"the {len(found.axes)} axes {', '.join(found.axes)}" if len(found.axes) > 1 else (
            f"the axis {found.axes[0]}" if found.axes else "no axis: a modifier applies to what stands to its left")
        raise InputError(f"{found.name} takes {takes}; got {len(said)}" + (
            "; in a product every name has brackets of its own: zero3[16]*tp[4]" if found.axes else ""))
    named = [a for a in said if isinstance(a, Axis)]
    if len(named) == len(said) and all(a.name in found.axes for a in named):
        by_name: dict[str, Axis] = {}
        for axis in named:
            if axis.name in by_name:
                raise InputError(f"{found.name} names axis '{axis.name}' twice")
            by_name[axis.name] = axis
        return tuple(by_name.get(default, Axis(default)) for default in found.axes)
    if len(said) != len(found.axes):
        unknown = next((a.name for a in named if a.name not in found.axes), "")
        raise InputError(f"{found.name} has {len(found.axes)} axes: rename all of them, or none", name=unknown,
                         valid=found.axes)
    bound = tuple(a if isinstance(a, Axis) else Axis(default, a) for default, a in zip(found.axes, said, strict=True))
    return Mesh(bound).axes


def _renamed(value: Any, axes: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {axes.get(key, key): _renamed(inner, axes) for key, inner in value.items()}
    return value


def _expression(name: str, found: Entry, bound: tuple[Axis, ...]) -> str:
    if all(a == Axis(default) for a, default in zip(bound, found.axes, strict=True)):
        return name
    if len(bound) == 1 and bound[0].name == found.axes[0]:
        return f"{name}[{bound[0].size}]"
    renamed = any(a.name != default for a, default in zip(bound, found.axes, strict=True))
    return f"{name}[{','.join(repr(a) for a in bound if renamed or a.size is not None)}]"


def standalone(strategy: Strategy) -> Strategy:
    """`strategy`, or `dp*strategy` where it is modifiers alone.

    >>> standalone(offload_optimizer()).name
    'dp*offload_optimizer'
    """
    return instantiate("dp") * strategy if strategy.modifiers and not strategy.mesh.axes else strategy


def _on_axes(name: str) -> Callable[..., Strategy]:
    """The function that instantiates one entry; its documentation is the entry's."""
    found = entry(name)

    def strategy(*axes: str | int | Axis, **sizes: int | None) -> Strategy:
        return instantiate(name, *axes, **sizes)

    sizes = {axis: 8 // 2**k for k, axis in enumerate(found.axes)}
    example = [f">>> {name}({', '.join(f'{a}={n}' for a, n in sizes.items())}).name",
               repr(instantiate(name, **sizes).name)]
    modes = [f"    {line}" for line in table_lines(found)]
    axes = f"Axes: {', '.join(found.axes)}." if found.axes else "A modifier: it applies to the strategy on its left."
    strategy.__name__ = strategy.__qualname__ = name
    title = f"{found.title[0].upper()}{found.title[1:]}."
    strategy.__doc__ = "\n".join([title, "", *modes, "", f"{axes} Source: {found.source}.", "", *example])
    return strategy


def table_lines(found: Entry) -> Iterator[str]:
    """The tables of an entry, a line each, as a strategy file says them.

    >>> list(table_lines(entry("zero1")))[:2]
    ['[dims] dp = ["batch"]', '[states.optimizer] dp = "S"']
    """
    for table, value in found.tables.items():
        inner = value if all(isinstance(v, Mapping) for v in value.values()) else {"": value}
        for name, keys in inner.items():
            said = ", ".join(f"{key if key.isidentifier() else json.dumps(key)} = {json.dumps(v)}"
                             for key, v in keys.items())
            yield f"[{table}{'.' if name else ''}{name}] {said}"


dp = _on_axes("dp")
zero1 = _on_axes("zero1")
zero2 = _on_axes("zero2")
zero3 = _on_axes("zero3")
fsdp = _on_axes("fsdp")
fsdp_no_reshard = _on_axes("fsdp_no_reshard")
hsdp = _on_axes("hsdp")
mics = _on_axes("mics")
zeropp = _on_axes("zeropp")
tp = _on_axes("tp")
tp_sp = _on_axes("tp_sp")
tp_sp_keep = _on_axes("tp_sp_keep")
cp = _on_axes("cp")
cp_ulysses = _on_axes("cp_ulysses")
cp_ring = _on_axes("cp_ring")
pp = _on_axes("pp")
pp_gpipe = _on_axes("pp_gpipe")
pp_1f1b = _on_axes("pp_1f1b")
pp_interleaved = _on_axes("pp_interleaved")
pp_zb_h1 = _on_axes("pp_zb_h1")
pp_zb_h2 = _on_axes("pp_zb_h2")
pp_interleaved_zb = _on_axes("pp_interleaved_zb")
pp_zb_v = _on_axes("pp_zb_v")
pp_dualpipe_v = _on_axes("pp_dualpipe_v")
ep = _on_axes("ep")
offload_optimizer = _on_axes("offload_optimizer")
offload_parameters = _on_axes("offload_parameters")
offload_activations = _on_axes("offload_activations")
recompute_full = _on_axes("recompute_full")
recompute_selective = _on_axes("recompute_selective")
