"""What a strategy may say: one table of tables, keys, value kinds and defaults, and a reader per kind.

Strategy files, the catalogue and Python callers read the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from placealg.errors import InputError
from placealg.loss_terms import TERMS
from placealg.mesh import ALONE
from placealg.placement import MEMORY_TIERS, MODES, STATES
from placealg.placement import REGION as REGION
from placealg.strategy.precision import PRESET, precisions

NONE = "none"
"""What stands for a dim in an entry that keeps the ops of a region whole."""

LAYER = "layer"
"""The dim of the model's depth: an axis that names it, and nothing else, is a pipeline."""

IN_A_V = ("zb_v", "dualpipe_v")
"""The orders of a pipeline in which a rank has one chunk of the first half of the model, and one of the second."""

DATA_DIMS = ("batch", "seq", "seq_kv")
"""The dims of tokens; no parameter has one of them."""

LIFETIMES = ("leaf", "use", "microbatch", "step")
"""How long a gathered copy lives, from the shortest: one leaf module's ops, a unit's, a microbatch, a step."""
GATHERS = ("at_once", "ring")
REDUCTIONS = ("reduce_scatter", "all_reduce")
PADS = ("none", "rows", "elements")
AVERAGES = ("none", "optimizer", "parameters")
"""As which state an average of the weights rests; none: there is no average."""

OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "adamw": ("elementwise", ()),
    "adam": ("elementwise", ()),
    "sgd": ("elementwise", ()),
    "muon": ("matrix", ("grad_sum", "moments")),
    "adafactor": ("matrix", ("grad_sum", "master", "moments")),
    "lamb": ("matrix", ("grad_sum", "master", "moments")),
}
"""Optimizer -> (locality, the values of which one element's update reads the whole matrix).

Adafactor scales its step by the root mean square of the parameter and clips it by that of the update (Shazeer and
Stern 2018); LAMB's trust ratio is a quotient of their norms (You et al. 2020).
"""

WITH_VECTORS = ("muon",)
"""The per-matrix optimizers beside which AdamW updates what is no matrix, such as biases, and tables of tokens."""

ONE_MOMENT = ("muon",)
"""The optimizers that keep one moment of each element, a momentum: Adam keeps two, which `o` counts."""

DOUBTED: Mapping[str, str] = {
    "adafactor": "Adafactor keeps less than Adam's two moments, which o counts: a row and a column of the second one "
                 "(Shazeer and Stern 2018); [types] o says what yours holds",
    "sgd": "SGD keeps one momentum or none, and o counts Adam's two moments; [types] o says what yours holds",
}
"""Optimizer -> why the bytes of its state are in doubt; LAMB keeps Adam's two moments (You et al. 2020)."""

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "mean_of_means": {"divisor": "tokens", "count_axes": None, "assume": ("equal_counts",)},
    "token_mean": {"divisor": "count", "count_axes": "data", "assume": ()},
    "sum": {"divisor": "one", "count_axes": "data", "assume": (), "reference": "sum"},
}
"""Loss preset -> divisor of the local sum, axes over which the count is summed, hypotheses."""

RANK = "adapter_rank"
"""The symbol of the rank of adapters."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "schedule": {"microbatches": "m", "lifetime": {}, "prefetch": 0, "replay": "whole", "keep": (), "recompute": (),
                 "recompute_layers": {}, "offload_layers": {},
                 "sharing": "shared", "gather": {}, "reduction": {}, "wire": {}, "microbatch_mean": "loss",
                 "pipeline": "1f1b", "chunks": 1, "stages": (), "alone": (), "actions": ()},
    "parameters": {"tier": "device"},
    "activations": {"tier": "host"},
    "optimizer": {"name": "adamw", "clip": "global_norm", "norm": "all_axes", "skip": "none", "tier": "device",
                  "average": "none", "router_bias": False, "fp8_scales": (), "fp8_history": 1024,
                  "offload_share": ""},
    "loss": {"preset": "mean_of_means", "reference": "token_mean", "terms": (), "scale": "none"},
    "types": {"w": "2", "g": "2", "wire": "2", "o": "12", "act": "2"},
    "random": {"dropout": ()},
    "shards": {"pad": "none"},
    "checkpoint": {"by": "owners", "holds": "all"},
    "adapters": {"match": (), "rank": RANK, "train": ()},
}
"""Table -> field -> the value that holds where a strategy is silent."""

WIRE_W = "wire_w"
"""The element size of gathered weights: w where a strategy is silent."""

USE, ACC = "use", "acc"
"""The element sizes of gathered copies, and of gradients that are not reduced yet: w and g where a strategy is silent.
"""

ACT_LINEAR, ACT_NORM, ACT_FUNCTION = "act_linear", "act_norm", "act_function"

KEPT_FOR = (ACT_LINEAR, ACT_NORM, ACT_FUNCTION)
"""The element sizes of what ops of one class alone keep: products with parameters, norms, elementwise functions and
products; act where a strategy is silent."""

AVG = "avg"
"""The element size of an average of the weights: 4 where a strategy is silent."""

TYPES = (*DEFAULTS["types"], WIRE_W, USE, ACC, AVG, *KEPT_FOR)
"""The element sizes that a strategy may say."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: the kind of its value, and the valid names where the kind is a choice."""

    kind: str
    valid: tuple[str, ...] = ()


_MODES = {state: Key("modes") for state in STATES if state != "activations"}

SCHEMA: Mapping[str, Mapping[str, Key]] = {
    "mesh": {"*": Key("size")},
    "dims": {"*": Key("dims")},
    "states": {**_MODES, "activations": Key("activations")},
    "groups": {"match": Key("text"), **_MODES, "optimizer": Key("group_optimizer"), "types": Key("types"),
               "lifetime": Key("lifetimes"), "wire": Key("wires"), "frozen": Key("flag"),
               "matrix": Key("names")},
    "adapters": {"match": Key("patterns"), "rank": Key("rank"), "train": Key("patterns")},
    "schedule": {"microbatches": Key("microbatches"), "lifetime": Key("lifetimes"), "prefetch": Key("whole"),
                 "replay": Key("choice", ("whole", "by_dependency", "early_stop")),
                 "keep": Key("patterns"), "recompute": Key("patterns"),
                 "recompute_layers": Key("layers_chosen"), "offload_layers": Key("layers_chosen"),
                 "sharing": Key("choice", ("shared", "per_use")),
                 "gather": Key("gathers"), "reduction": Key("reductions"), "wire": Key("wires"),
                 "microbatch_mean": Key("choice", ("loss", "gradients")),
                 "pipeline": Key("choice", ("1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "interleaved_zb",
                                            *IN_A_V)),
                 "chunks": Key("chunks"), "stages": Key("layers"), "actions": Key("rows"),
                 "alone": Key("choices", ALONE)},
    "parameters": {"tier": Key("choice", MEMORY_TIERS)},
    "activations": {"tier": Key("choice", MEMORY_TIERS[1:])},
    "optimizer": {"name": Key("choice", tuple(OPTIMIZERS)), "locality": Key("choice", ("elementwise", "matrix")),
                  "clip": Key("choice", ("global_norm", "none")),
                  "norm": Key("choice", ("all_axes", "split_axes")), "skip": Key("choice", ("overflow", "none")),
                  "tier": Key("choice", MEMORY_TIERS), "average": Key("choice", AVERAGES),
                  "router_bias": Key("flag"), "fp8_scales": Key("patterns"), "fp8_history": Key("count"),
                  "offload_share": Key("share")},
    "loss": {"preset": Key("choice", tuple(LOSSES)), "divisor": Key("choice", ("tokens", "count", "one")),
             "count_axes": Key("count_axes"), "assume": Key("choices", ("equal_counts",)),
             "reference": Key("choice", ("token_mean", "microbatch_mean", "sum")),
             "scale": Key("choice", ("none", "dynamic")),
             "terms": Key("choices", TERMS), "term_divisor": Key("choice", ("tokens", "count", "one")),
             "term_axes": Key("count_axes")},
    "types": {PRESET: Key("choice", tuple(precisions())), **{name: Key("bytes") for name in TYPES}},
    "random": {"dropout": Key("streams")},
    "shards": {"pad": Key("choice", PADS)},
    "checkpoint": {"by": Key("choice", ("owners", "replica", "one")), "holds": Key("choice", ("all", "parameters"))},
}
"""Table -> key -> kind of value. `*` stands for any axis of the mesh; [groups.NAME] holds one rule each."""

TABLES: Mapping[str, str] = {
    "mesh": "the axes of the device mesh, the first one major",
    "dims": "what each axis splits, the first entry that applies to an op; an axis that splits nothing says []",
    "states": "the mode of each state along each axis, and of a region's activations; R where nothing is said",
    "groups": "other placements, types, lifetimes, bytes on the wire or another optimizer for the parameters whose "
              "names match a pattern, that they are frozen, or which of their dims make one matrix",
    "adapters": "the linear ops beside which low-rank adapters stand, their rank, and what trains beside them: every "
                "other parameter is frozen",
    "schedule": "microbatches, lifetimes of gathered units, how many are gathered ahead, how much of a region runs "
                "again, which of its ops are kept or do, in which layers, in which layers activations rest on "
                "another tier, whether uses share a redistribution, what is gathered in a ring, how gradients are "
                "reduced and in how many bytes along an axis, where the mean over microbatches is taken, a "
                "pipeline's order and stages, which parts have no layer",
    "parameters": "the tier on which parameters rest",
    "activations": "the tier on which those of regions rest that are O, between forward and backward",
    "optimizer": "the optimizer, what its update reads, clipping, over which axes the norm is summed, when a step is "
                 "skipped, the tier of its state, or of that of a share of the layers alone, as which state an average "
                 "of the weights rests, whether routers have a bias that the load of their experts moves, and of which "
                 "linear ops the inputs are cast to 8 bits by a scale from how long a history",
    "loss": "how the local sum of the loss is divided, and what that assumes; whether a scale multiplies it that grows "
            "and shrinks by overflow; further terms of the loss that routers have, and how theirs is",
    "types": "a preset of an engine's bytes; bytes per element of weights, gradients at rest, gradients on the wire, "
             "optimizer state, activations, of gathered weights on the wire and in use, of gradients that are not "
             "reduced yet, of an average of the weights, and of what linear ops, norms, or elementwise functions alone "
             "keep for backward",
    "random": "the random streams that differ between ranks",
    "shards": "what is filled up where a share is no whole number: every parameter's rows, or a unit's elements as one "
              "buffer",
    "checkpoint": "who stores a checkpoint, every rank what rests with it, one of several that have the same, or one "
                  "alone; and whether it holds all states or parameters alone",
}
"""Table -> what it says."""

KINDS: Mapping[str, str] = {
    "text": "a non-empty string",
    "size": 'a whole number of at least 1, or "symbolic"',
    "dims": 'a list of "DIM", "REGION.DIM", "REGION.none"',
    "modes": "{ AXIS = MODE, ... }; MODE is " + ", ".join(f'"{row.mode}"' for row in MODES) + ', or one with "+O"',
    "activations": '{ AXIS = MODE, "region:NAME" = "M", ... }; MODE is "S*" or "R", and "S" along the batch; a region '
                   'may be "O" or "M+O"',
    "group_optimizer": "{ AXIS = MODE, ... }, an optimizer's name, or both as { name = NAME, AXIS = MODE, ... }",
    "types": "{ " + ", ".join(f"{t} = BYTES" for t in TYPES) + " }, any of them, and preset = NAME",
    "bytes": 'a positive number, such as 2 or "1/2"',
    "microbatches": '"m" (symbolic), or a whole number of at least 1',
    "whole": "a whole number of at least 0",
    "count": "a whole number of at least 1",
    "share": 'a number between 0 and 1, such as 0.25 or "1/4"',
    "flag": "true or false",
    "patterns": "a pattern of names, in which * is any text, or a list of them",
    "names": "a list of dims; [] where the parameters are no matrices",
    "rank": f'"{RANK}" (symbolic), or a whole number of at least 1',
    "chunks": '"v" (symbolic), or a whole number of at least 1',
    "layers": "a list of the layers of each stage, whole numbers of at least 1; the first and the last may have "
              "0, and the one before a last one with 0",
    "rows": "a list of rows, one for each rank, such as \"0F0,0F1,0B0,0B1\"",
    "layers_chosen": "{ first = N } or { every = N }, N a whole number of at least 1",
    "lifetimes": "{ AXIS = LIFE, ... }; LIFE is " + ", ".join(f'"{life}"' for life in LIFETIMES),
    "gathers": "{ AXIS = HOW, ... }; HOW is " + ", ".join(f'"{how}"' for how in GATHERS),
    "reductions": '{ AXIS = HOW, ... }; HOW is ' + ", ".join(f'"{how}"' for how in REDUCTIONS),
    "wires": '{ AXIS = BYTES, ... }; BYTES is a positive number, such as 2 or "1/2"',
    "count_axes": '"data" (every axis that splits the batch, and microbatch), or a list of axes',
    "streams": 'a list of "rank(AXIS)", "local(DIM)"',
}
"""Kind of value -> what is accepted; "choice" and "choices" stand in their Key."""


def accepted(key: Key) -> str:
    """The values that a key accepts, in words.

    >>> accepted(SCHEMA["optimizer"]["tier"])
    'one of "device", "host", "nvme"'
    """
    if key.kind not in ("choice", "choices"):
        return KINDS[key.kind]
    return ("one of " if key.kind == "choice" else "a list of ") + ", ".join(f'"{name}"' for name in key.valid)


def keys_of(table: str) -> dict[str, list[str]]:
    """What a table accepts -> the keys that accept it; AXIS stands for any axis of the mesh.

    >>> keys_of("mesh")
    {'a whole number of at least 1, or "symbolic"': ['AXIS']}
    """
    found: dict[str, list[str]] = {}
    for key, row in SCHEMA[table].items():
        found.setdefault(accepted(row), []).append("AXIS" if key == "*" else key)
    return found


Path = tuple[str | int, ...]
Where = Callable[[Path], str]
"""From a path of keys to the place in the text, `FILE:LINE`."""


def nowhere(_path: Path) -> str:
    """The place of tables that come from no text."""
    return ""


@contextmanager
def placed(where: Where, *path: str | int) -> Iterator[None]:
    """Give every InputError of the body its place, unless it has one."""
    try:
        yield
    except InputError as error:
        raise error.at(where(path)) from None


def unknown_axis(label: str, axis: str, axes: Iterable[str]) -> InputError:
    """The error of a table that names an axis which the mesh lacks."""
    return InputError(f"{label} names axis '{axis}', which the mesh lacks", name=axis, valid=axes)


def known_axis(label: str, axis: str, axes: tuple[str, ...]) -> None:
    """Raise InputError unless the mesh has `axis`."""
    if axis not in axes:
        raise unknown_axis(label, axis, axes)


def known_key(table: str, key: str, label: str = "") -> Key:
    """The schema's row for `key` of `table`."""
    keys = SCHEMA[table]
    if key not in keys:
        raise InputError(f"unknown key '{key}' in {label or f'[{table}]'}", name=key, valid=keys)
    return keys[key]


def option_key(table: str, key: str) -> Key:
    """The schema's row for `key` of an option table; a table that does not exist is an InputError."""
    if table not in DEFAULTS:
        raise InputError(f"unknown table [{table}]", name=table, valid=SCHEMA)
    return known_key(table, key)
