"""What a strategy may say: a row for every key, with its kind of value, its default and what it says.

Strategy files, the catalogue, Python callers, the JSON schema and `explain` read the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from placealg.errors import InputError, shown
from placealg.frozen import FrozenMap
from placealg.loss_terms import PER, TERMS
from placealg.mesh import ALONE, called
from placealg.number_formats import FORMATS
from placealg.placement import MEMORY_TIERS, STATES
from placealg.strategy.buffers import BUFFER, NAME
from placealg.strategy.buffers import SIZE as SLOTS
from placealg.strategy.kinds import (
    ACTIVATIONS,
    BYTES,
    COUNT_AXES,
    DIMS,
    ELEMENT,
    FLAG,
    GATHERED_HOW,
    GROUP_OPTIMIZER,
    LAYERS_CHOSEN,
    LIVES,
    MATRIX,
    PATTERNS,
    PLACEMENT,
    REDUCED_HOW,
    ROWS,
    SHARE,
    SIZE,
    STAGES,
    STREAMS,
    TEXT,
    WIRES,
    Kind,
    Path,
    Where,
    choice,
    choices,
    counted,
    whole,
)
from placealg.strategy.precision import PRESET, precisions, preset_bytes
from placealg.strategy.vocabulary import (
    ACC,
    ALGORITHMS,
    AS_SENT,
    AS_TYPED,
    AVERAGES,
    AVG,
    BUFFERED,
    IN_A_V,
    KEPT_FOR,
    LOSSES,
    OPTIMIZERS,
    OVERLAPS,
    PADS,
    POSTED,
    RANK,
    RING,
    USE,
    WIRE_W,
)


class Unsaid(Enum):
    """The default of a key without one: what holds then follows from other keys."""

    UNSAID = "unsaid"


UNSAID: Final = Unsaid.UNSAID


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: the kind of its value, the value that holds where nothing is said, and what it says.

    `says` are sentences; without them the table's own are told.
    """

    kind: Kind
    default: Any = UNSAID
    says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a strategy: what it says, and its keys; `*` stands for any axis of the mesh."""

    says: str
    keys: Mapping[str, Key]


_MODES = {state: Key(PLACEMENT) for state in STATES if state != "activations"}

_SIZES = {PRESET: Key(choice(*precisions())), "w": Key(ELEMENT, "2"), "g": Key(ELEMENT, "2"),
          "wire": Key(ELEMENT, "2"), "o": Key(BYTES, "12"), "act": Key(ELEMENT, "2"),
          **{name: Key(ELEMENT) for name in (WIRE_W, USE, ACC, AVG, *KEPT_FOR)}}

TYPES = tuple(name for name in _SIZES if name != PRESET)
"""The element sizes that a strategy may say."""


def _types(label: str, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> FrozenMap[str, str]:
    if not isinstance(value, Mapping):
        raise InputError(f"{label} is {shown(value)}: expected a table, such as {{ w = ... }}")
    read = {}
    for symbol, number in value.items():
        if symbol not in _SIZES:
            raise InputError(f"{label} names '{symbol}'", where=where((*path, symbol)), name=symbol, valid=_SIZES)
        read[symbol] = _SIZES[symbol].kind.read(f"{label}.{symbol}", number, axes, where, (*path, symbol))
    return FrozenMap(preset_bytes(read))


ELEMENT_SIZES = Kind("{ " + ", ".join(f"{t} = BYTES" for t in TYPES) + " }, any of them, and preset = NAME", _types, {
    "type": "object", "properties": {name: row.kind.schema for name, row in _SIZES.items()},
    "additionalProperties": False})

TABLES: Mapping[str, Table] = {
    "mesh": Table(
        "the axes of the device mesh, the first one major",
        {"*": Key(SIZE)}),
    "dims": Table(
        "what each axis splits, the first entry that applies to an op; an axis that splits nothing says []",
        {"*": Key(DIMS)}),
    "states": Table(
        "the mode of each state along each axis, and of a region's activations; R where nothing is said",
        {**_MODES,
         "activations": Key(ACTIVATIONS)}),
    "groups": Table(
        "other placements, types, lifetimes, bytes on the wire or another optimizer for the parameters whose "
        "names match a pattern, that they are frozen, or which of their dims make one matrix",
        {"match": Key(TEXT),
         **_MODES,
         "optimizer": Key(GROUP_OPTIMIZER),
         "types": Key(ELEMENT_SIZES),
         "lifetime": Key(LIVES),
         "wire": Key(WIRES, UNSAID, (
                "wire says in how many bytes an element of a gradient is reduced over an axis, where they are not "
                "those of wire in [types].",
                "Axes of other bytes are reduced apart; what that rounds, no verdict covers.")),
         "frozen": Key(FLAG),
         "matrix": Key(MATRIX, UNSAID, (
                "matrix says which dims of the group's parameters make one matrix, for an optimizer that acts on each"
                " matrix by itself: the others number a stack, of which nothing is gathered along an axis that splits"
                " it.",
                "Where nothing is said, experts number a stack, and biases and norms are no matrices."))}),
    "adapters": Table(
        "the linear ops beside which low-rank adapters stand, their rank, and what trains beside them: every "
        "other parameter is frozen",
        {"match": Key(PATTERNS, ()),
         "rank": Key(counted(RANK), RANK),
         "train": Key(PATTERNS, ())}),
    "schedule": Table(
        "microbatches, lifetimes of gathered units, how many are gathered ahead, how much of a region runs again,"
        " which of its ops are kept or do, in which layers, in which layers activations rest on another tier, "
        "whether uses share a redistribution, what is gathered in a ring, how gradients are reduced and in how "
        "many bytes along an axis, in which type they are summed at least, where the mean over microbatches is taken, "
        "a pipeline's order and stages, which parts have no layer",
        {"microbatches": Key(counted("m"), "m"),
         "lifetime": Key(LIVES, {}),
         "prefetch": Key(whole(0), 0, (
                "It says how many units are gathered ahead of the one in use: the transient is (1 + prefetch) times "
                "the largest unit.",
                "The program stays in order: that a gather ahead overlaps an update of what it reads is not covered "
                "by a verdict, and stands there by name.")),
         "replay": Key(choice("whole", "by_dependency", "early_stop"), "whole"),
         "keep": Key(PATTERNS, (), (
                "keep names ops of regions that are M whose results are held all the same, as selective activation "
                "checkpoints do.",
                "Backward runs the rest of the region again, what those ops read included.")),
         "recompute": Key(PATTERNS, (), (
                "recompute names the ops of regions that are M which backward runs again; the results of the others "
                "are held.",
                "It is keep, said the other way round: a strategy says one of them.")),
         "recompute_layers": Key(LAYERS_CHOSEN, {}, (
                "recompute_layers says in which layers the regions are recomputed that are M: the first ones, or one "
                "of so many.",
                "These layers are a unit of their own, again, which stands before the others.")),
         "offload_layers": Key(LAYERS_CHOSEN, {}, (
                "offload_layers says in which layers the activations of regions that are O rest on another tier: the "
                "first ones, or one of so many.",
                "These layers are a unit of their own, away, which stands before the others; with recompute_layers, "
                "which then chooses the same, it is again.")),
         "sharing": Key(choice("shared", "per_use"), "shared"),
         "gather": Key(GATHERED_HOW, {}),
         "reduction": Key(REDUCED_HOW, {}, (
                "reduction says how gradients are summed that rest, or are updated, as shards: reduce_scatter leaves "
                "each owner its part, all_reduce leaves all the whole sum, of which each owner keeps its part.",
                "Both give the same gradients; an all_reduce sends twice as much.")),
         "wire": Key(WIRES, {}, (
                "wire says in how many bytes an element of a gradient is reduced over an axis, where they are not "
                "those of wire in [types].",
                "Axes of other bytes are reduced apart; what that rounds, no verdict covers.")),
         "sums": Key(choice(AS_TYPED, *FORMATS), AS_TYPED, (
                "sums says in which type, at least, each sum of gradients is to be taken: over ranks, and over "
                "microbatches.",
                "The obligation precision holds each sum of the program against it; as_typed, against wire and g of "
                "[types].")),
         "adds": Key(choice(AS_SENT, *FORMATS), AS_SENT, (
                "adds says in which type a collective adds gradients, where it is not that of the wire: in a network "
                "that adds, or behind an all_to_all.",
                "The obligation precision judges that type; the sum is cast to the wire's once.")),
         "algorithm": Key(choice(*ALGORITHMS), RING, (
                "algorithm says how collectives add: in a ring, n - 1 additions one after the other, or in a tree of "
                "pairs.",
                "No verdict and no cost depends on it; placealg tolerance does.")),
         "microbatch_mean": Key(choice("loss", "gradients", "samples"), "loss", (
                "microbatch_mean says what is divided by m: the loss of every microbatch, or the gradients once they "
                "are accumulated; samples: neither is, and the loss counts by the microbatch's share of all samples.",
                "Where the loss is divided by the tokens of all microbatches no mean is taken.")),
         "pipeline": Key(choice("1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "interleaved_zb", *IN_A_V), "1f1b"),
         "chunks": Key(counted("v"), 1),
         "stages": Key(STAGES, ()),
         "actions": Key(ROWS, ()),
         "alone": Key(choices(*ALONE), ())}),
    "parameters": Table(
        "the tier on which parameters rest",
        {"tier": Key(choice(*MEMORY_TIERS), "device")}),
    "activations": Table(
        "the tier on which those of regions rest that are O, between forward and backward",
        {"tier": Key(choice(*MEMORY_TIERS[1:]), "host")}),
    "optimizer": Table(
        "the optimizer, what its update reads, clipping, over which axes the norm is summed, when a step is "
        "skipped, the tier of its state, or of that of a share of the layers alone, as which state an average of "
        "the weights rests, whether routers have a bias that the load of their experts moves, and of which linear"
        " ops the inputs are cast to 8 bits by a scale from how long a history",
        {"name": Key(choice(*OPTIMIZERS), "adamw"),
         "locality": Key(choice("elementwise", "matrix")),
         "clip": Key(choice("global_norm", "none"), "global_norm"),
         "norm": Key(choice("all_axes", "split_axes"), "all_axes", (
                "norm says over which axes the norm of the gradients is summed: all, where one replica of a gradient "
                "counts, or those alone that split some gradient, where each replica counts for itself.",
                "Both give the same norm on every rank.")),
         "skip": Key(choice("overflow", "none"), "none"),
         "tier": Key(choice(*MEMORY_TIERS), "device"),
         "average": Key(choice(*AVERAGES), "none"),
         "router_bias": Key(FLAG, False),
         "fp8_scales": Key(PATTERNS, (), (
                "fp8_scales names linear ops whose inputs are cast to 8 bits by a scale, a state that the largest "
                "magnitude of the input moves.",
                "Ops that read one tensor share its scale; the maximum goes over every rank that holds a part.")),
         "fp8_history": Key(whole(1), 1024, (
                "fp8_history is the number of steps whose largest magnitudes a scale is made of, 4 bytes each.",
                "It is 1024 where nothing is said, as in Transformer Engine's DelayedScaling.")),
         "offload_share": Key(SHARE, "", (
                "offload_share says of which share of the layers the optimizer state alone rests on the tier: of the "
                "first ones, rounded down.",
                "These layers are a unit of their own, away, which stands before the others."))}),
    "loss": Table(
        "how the local sum of the loss is divided, and what that assumes; whether a scale multiplies it that "
        "grows and shrinks by overflow; what it is a mean over; further terms of the loss that routers have, and how "
        "theirs is",
        {"preset": Key(choice(*LOSSES), "mean_of_means"),
         "divisor": Key(choice("tokens", "count", "one")),
         "count_axes": Key(COUNT_AXES),
         "assume": Key(choices("equal_counts")),
         "reference": Key(choice("token_mean", "microbatch_mean", "sample_mean", "sum"), "token_mean", (
                "reference says what the loss of the single device is: the mean over all tokens, the mean of its "
                "microbatches' means, the same of which each counts by its samples (sample_mean), or the sum.",
                "A program is held against it, whatever it divides by.")),
         "per": Key(choice(*PER), "token", (
                "per says what the loss is a mean over: tokens, or the means of each sequence or of each document.",
                "A token counts in the mean of its sequence by its weight; sequences, or documents, count alike.")),
         "scale": Key(choice("none", "dynamic"), "none"),
         "terms": Key(choices(*TERMS), (), (
                "terms are those of the loss that each router of the model has beside that of the tokens: balance, "
                "the load of the experts of each sequence, and z, a bound of the router's logits.",
                "Each starts a backward of its own in every layer.")),
         "term_divisor": Key(choice("tokens", "count", "one"), UNSAID, (
                "term_divisor says what divides the further terms of the loss, as divisor does for the loss.",
                "Where nothing is said it is what divides the loss.")),
         "predictions": Key(choice("added", "apart", "counted"), "added", (
                "predictions says how the losses of layers that predict later tokens count: added to the loss of each "
                "token, times a weight, or apart, as terms of their own; counted: each a mean over tokens of its own.",
                "Apart they are divided as term_divisor and term_axes say, by the count of the loss or by their own.")),
         "term_tokens": Key(choice("all", "weighted"), "all", (
                "term_tokens says of which tokens the further terms of the loss are: of all alike, padding included, "
                "or of each by its weight, as the loss is.",
                "It speaks of weights that are data, which [tokens] says.")),
         "term_axes": Key(COUNT_AXES, UNSAID, (
                "term_axes are the axes over which the count is summed that divides the further terms of the loss.",
                "A program has one count: where it divides the loss, too, they are those of count_axes."))}),
    "tokens": Table(
        "which attributes of tokens come with the batch as data: weights in the loss, the documents of packed "
        "sequences, positions",
        {"weights": Key(FLAG, False, (
                "weights says that each token has a weight in the loss, 0 for padding and prompts, by which its loss "
                "is multiplied: counts are sums of weights.",
                "Without it tokens may still be masked; their weights are then no numbers of the program.")),
         "documents": Key(FLAG, False, (
                "documents says that sequences are packed: a query sees keys of its own document alone.",
                "Every attention of the model reads of which document each query and each key is.")),
         "positions": Key(choice("index", "data"), "index", (
                "positions says by what rotary positions turn a token: by its place in the sequence, or by a number "
                "that comes with the batch, which may begin again with each document.",
                "Learned positions are such numbers in any case."))}),
    "types": Table(
        "a preset of an engine's bytes; bytes per element of weights, gradients at rest, gradients on the wire, "
        "optimizer state, activations, of gathered weights on the wire and in use, of gradients that are not "
        "reduced yet, of an average of the weights, and of what linear ops, norms, or elementwise functions alone"
        " keep for backward",
        _SIZES),
    "random": Table(
        "the random streams that differ between ranks",
        {"dropout": Key(STREAMS, ())}),
    "overlap": Table(
        "which events run beside others, on streams of their own, and what waits for what: as an engine does it",
        {"waits": Key(choice("none", *OVERLAPS), "none", (
                "waits says whose streams and waits the program has: those of PyTorch's FSDP2, of DeepSpeed, or of "
                "Megatron's overlapped reductions and gathers.",
                "none: events run one after the other, as they are printed.")),
         "gather": Key(FLAG, True, (
                "gather says whether gathers and publishes of weights run on a stream of their own.",)),
         "reduce": Key(FLAG, True, (
                "reduce says whether reductions of gradients run on a stream of their own.",)),
         "prefetch": Key(whole(0), 1, (
                "prefetch says how many turns of its unit's loop ahead a gather is issued.",)),
         "buffers": Key(counted(SLOTS), SLOTS, (
                "buffers says how many flat buffers gathers are received in, in turn; K: any number, or as many as are "
                "gathered ahead where prefetch says two or more.",)),
         "messages": Key(choice(*POSTED), BUFFERED, (
                "messages says how the stages of a pipeline post their messages, where a send waits for its receiver: "
                "each alone, a send together with the next receive (grouped), or up to four between two blocks of a "
                "forward and a backward.",
                "buffered: a stage goes on once its message is on its way; the others are part of schedule."))}),
    "buffers": Table(
        "the slots of memory in which values are put that events on several streams use: a ring, an allocator's "
        "blocks, or the slot of another value",
        {"*": Key(BUFFER, FrozenMap())}),
    "shards": Table(
        "what is filled up where a share is no whole number: every parameter's rows, or a unit's elements as one "
        "buffer",
        {"pad": Key(choice(*PADS), "none")}),
    "checkpoint": Table(
        "who stores a checkpoint, every rank what rests with it, one of several that have the same, or one alone;"
        " and whether it holds all states or parameters alone",
        {"by": Key(choice("owners", "replica", "one"), "owners"),
         "holds": Key(choice("all", "parameters"), "all")}),
}
"""Every table of a strategy file, in the order in which it is written; [groups.NAME] holds one rule each."""

SCHEMA: Mapping[str, Mapping[str, Key]] = {name: table.keys for name, table in TABLES.items()}
"""Table -> key -> its row."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    table: found for table, keys in SCHEMA.items()
    if (found := {key: row.default for key, row in keys.items() if row.default is not UNSAID})}
"""Table -> field -> the value that holds where a strategy is silent."""


def keys_of(table: str) -> dict[str, list[str]]:
    """What a table accepts -> the keys that accept it; AXIS stands for any axis of the mesh.

    >>> keys_of("mesh")
    {'a whole number of at least 1, or "symbolic"': ['AXIS']}
    """
    found: dict[str, list[str]] = {}
    for key, row in SCHEMA[table].items():
        found.setdefault(row.kind.words, []).append("NAME" if key == "*" and table == "buffers" else
                                                    "AXIS" if key == "*" else key)
    return found


def known_key(table: str, key: str, label: str = "") -> Key:
    """The schema's row for `key` of `table`."""
    keys = SCHEMA[table]
    if table == "buffers" and NAME.match(key):
        return keys["*"]
    if key not in keys:
        meant = next((k for k in keys if called(k) and called(k) in (key, called(key))), key)
        raise InputError(f"unknown key '{key}' in {label or f'[{table}]'}", name=meant, valid=keys)
    return keys[key]


def option_key(table: str, key: str) -> Key:
    """The schema's row for `key` of an option table; a table that does not exist is an InputError."""
    if table not in DEFAULTS:
        raise InputError(f"unknown table [{table}]", name=table, valid=SCHEMA)
    return known_key(table, key)
