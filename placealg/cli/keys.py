"""Explanations of what a strategy file says: the keys of its tables, of its edits, of what it expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placealg.cli.glosses import Explained
from placealg.errors import shown
from placealg.step.edit import ACTIONS
from placealg.step.event import POSITIONS
from placealg.step.event_fields import FIELDS, KINDS, OPERATORS
from placealg.strategy.options import DEFAULTS, SCHEMA, TABLES, Key, accepted

FIELD_SAYS: Mapping[str, str] = {
    "verb": "what the event does: one of the verbs, each of which `explain` knows",
    "value": "what it does it to: a value of a parameter group, a global value, or a tensor of the op graph",
    "group": "the parameter group whose value it is",
    "unit": "the unit of the model in whose loop the event runs",
    "axes": "the mesh axes over which it runs, in order",
    "op": f"the operator of what sums over ranks: one of {', '.join(OPERATORS)}",
    "divisor": "what the result is divided by: a quotient of sizes, `tokens`, `count` and `padding`",
    "at": "the positions of the loop over microbatches at which the event runs",
    "where": "the ranks, and of a value with elements the elements, for which the event runs",
    "from": "the value that is read, or the place that a tensor is said to have before",
    "to": "the kind at which a reduction aims, I or S, or the place that a tensor has behind",
    "version": "the label of the redistributed copy that is made or acted on: the axes on which it differs",
    "reads": "the versions of the operands of an op, in order, as TENSOR or TENSOR@LABEL",
    "root": "the rank along each of the axes whose copy is broadcast",
    "tier": "the memory that is read or written, or a pair such as device->host",
    "layout": "the owner function by which elements are sharded; NAME(AXIS) is one for each rank along AXIS",
    "bytes": "the element size that is sent, for costs alone",
    "rule": "the name of the rule that put the event there",
    "why": "the reason for which it stands there",
}
"""Field of an event -> what it says."""

GRAMMAR: Mapping[str, str] = {
    "at": f"POSITION or [POSITION, ...]; POSITION is {', '.join(POSITIONS)}, or all; only is the one microbatch of m = "
          "1, first and last include it",
    "where": "CLAUSE, CLAUSE, ...; all of them hold; CLAUSE is all, owner(AXIS), rank(AXIS)=k or rank(AXIS)=last, "
             "or not before one of these: all ranks but that one",
    "from": f"a value of a group, or a place: {', '.join(KINDS)}, S(DIM)",
    "to": f"{', '.join(KINDS)}, S(DIM)",
    "divisor": "products and quotients of axis sizes, m, tokens, count, padding and numbers up to 2**26",
    "layout": "NAME, or NAME(AXIS)",
    "version": "AXES/AXES/...; AXES are axes joined by _, with a number if need be",
}
"""Field -> how its value is written."""

ACTION_SAYS: Mapping[str, str] = {
    "drop": "removes the events whose paths match", "double": "runs each event twice",
    "set": "changes the fields that stand beside it", "replace": "keeps of each event its path, and says these fields",
    "move": "moves the events next to an anchor", "insert": "puts a new event next to an anchor",
}
"""Action of an edit -> what it does."""

EXPECTED: Mapping[str, tuple[str, str]] = {
    "expect": ("what the file promises of its verdict: the exit code says whether it came so",
               'a verdict, or a table of verdict, obligation, group, class and ratio'),
    "obligation": ("in `expect`: the obligation that is refuted first, whose counterexample is printed",
                   "an identifier, such as gradient"),
    "ratio": ("in `expect`: the sum of got over the sum of want of the counterexample, as a function of the sizes",
              "a quotient of sizes, such as 1/tp"),
    "masked": ("the runs in which what the file gets wrong does not show; `prove --masked` and `museum` run them",
               '{ AXIS = n, m = n, counts = "equal" or "unequal" }, or a list of such tables'),
    "base": ("the strategy that the tables and edits of the file change", "an expression over the catalogue"),
    "source": ("where a bug was reported, or a strategy published", "any text"),
    "match": ("in [groups.NAME]: the parameters that the group describes", "a pattern, in which * is any text"),
}
"""Key beside the tables -> what it says, what is accepted."""

PREFETCH = ("prefetch is a key of [schedule].",
            "It says how many units are gathered ahead of the one in use: the transient is (1 + prefetch) times the "
            "largest unit.",
            "The program stays in order: that a gather ahead overlaps an update of what it reads is not covered by a "
            "verdict, and stands there by name.")
"""What prefetch says, and what it does not."""


WAYS: Mapping[str, tuple[str, str]] = {
    "reduction": ("reduction says how gradients are summed that rest, or are updated, as shards: reduce_scatter leaves "
                  "each owner its part, all_reduce leaves all the whole sum, of which each owner keeps its part.",
                  "Both give the same gradients; an all_reduce sends twice as much."),
    "wire": ("wire says in how many bytes an element of a gradient is reduced over an axis, where they are not those "
             "of wire in [types].", "Axes of other bytes are reduced apart; what that rounds, no verdict covers."),
    "microbatch_mean": ("microbatch_mean says what is divided by m: the loss of every microbatch, or the gradients "
                        "once they are accumulated.", "Where the loss is divided by the tokens of all microbatches "
                        "neither is."),
    "matrix": ("matrix says which dims of the group's parameters make one matrix, for an optimizer that acts on each "
               "matrix by itself: the others number a stack, of which nothing is gathered along an axis that splits "
               "it.", "Where nothing is said, experts number a stack, and biases and norms are no matrices."),
    "terms": ("terms are those of the loss that each router of the model has beside that of the tokens: balance, the "
              "load of the experts of each sequence, and z, a bound of the router's logits.",
              "Each starts a backward of its own in every layer."),
    "term_divisor": ("term_divisor says what divides the further terms of the loss, as divisor does for the loss.",
                     "Where nothing is said it is what divides the loss."),
    "term_axes": ("term_axes are the axes over which the count is summed that divides the further terms of the loss.",
                  "A program has one count: where it divides the loss, too, they are those of count_axes."),
    "keep": ("keep names ops of regions that are M whose results are held all the same, as selective activation "
             "checkpoints do.", "Backward runs the rest of the region again, what those ops read included."),
    "recompute": ("recompute names the ops of regions that are M which backward runs again; the results of the others "
                  "are held.", "It is keep, said the other way round: a strategy says one of them."),
    "recompute_layers": ("recompute_layers says in which layers the regions are recomputed that are M: the first ones, "
                         "or one of so many.", "These layers are a unit of their own, again, which stands before the "
                         "others."),
    "offload_layers": ("offload_layers says in which layers the activations of regions that are O rest on another "
                       "tier: the first ones, or one of so many.", "These layers are a unit of their own, away, which "
                       "stands before the others; with recompute_layers, which then chooses the same, it is again."),
    "offload_share": ("offload_share says of which share of the layers the optimizer state alone rests on the tier: "
                      "of the first ones, rounded down.", "These layers are a unit of their own, away, which stands "
                      "before the others."),
    "fp8_scales": ("fp8_scales names linear ops whose inputs are cast to 8 bits by a scale, a state that the largest "
                   "magnitude of the input moves.", "Ops that read one tensor share its scale; the maximum goes over "
                   "every rank that holds a part."),
    "fp8_history": ("fp8_history is the number of steps whose largest magnitudes a scale is made of, 4 bytes each.",
                    "It is 1024 where nothing is said, as in Transformer Engine's DelayedScaling."),
    "norm": ("norm says over which axes the norm of the gradients is summed: all, where one replica of a gradient "
             "counts, or those alone that split some gradient, where each replica counts for itself.",
             "Both give the same norm on every rank."),
}
"""Key of a table about which frameworks differ -> what it says, and what that changes."""


def fields() -> Iterator[Explained]:
    """The fields of events, the actions of edits, and the keys beside the tables."""
    for key in FIELDS:
        beside = ", ".join(action for action, keys in ACTIONS.items() if key in keys or action == "insert")
        yield Explained(key, "field of an event", (
            f"{key} says {FIELD_SAYS[key]}.", f"It may stand beside {beside} in an [[edit]], and in an [[event]]."),
            GRAMMAR.get(key, ""), f"placealg show zero3 --write-program FILE.toml writes {key} where it says something",
            "placealg.step.event_fields.py, FIELDS")
    for action, keys in ACTIONS.items():
        yield Explained(action, "action of an edit", (
            f"{action} = \"PATTERN\" in an [[edit]] {ACTION_SAYS[action]}.",
            f"Beside it may stand {', '.join(keys)}." if keys else "Nothing stands beside it."))
    for key, (says, values) in EXPECTED.items():
        yield Explained(key, "key of a file", (f"{key} says {says}.", f"Accepted: {values}."))


def keys() -> Iterator[Explained]:
    """The keys of every table."""
    for table, rows in SCHEMA.items():
        for key, row in rows.items():
            if key != "*" and key not in EXPECTED:
                said = (*WAYS[key], f"Accepted: {accepted(row)}.") if key in WAYS and table != "types" else (
                    f"{key} is a key of [{table}], which says {TABLES[table]}.", *_values(table, key, row))
                yield Explained(key, f"key of [{table}]", PREFETCH if key == "prefetch" else said)


def _values(table: str, key: str, row: Key) -> Iterator[str]:
    yield f"Accepted: {accepted(row)}."
    default = DEFAULTS.get(table, {}).get(key)
    if default is not None:
        yield f"Where nothing is said: {shown(default)}."
