"""Explanations of what a strategy file says: the keys of its tables, of its edits, of what it expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placealg.cli.glosses import Explained
from placealg.errors import shown
from placealg.step.edit import ACTIONS
from placealg.step.event import POSITIONS
from placealg.step.event_fields import FIELDS, KINDS, OPERATORS
from placealg.strategy.options import SCHEMA, TABLES, UNSAID, Key

FIELD_SAYS: Mapping[str, str] = {
    "verb": "what the event does: one of the verbs, each of which `explain` knows",
    "value": "what it does it to: a value of a parameter group, a global value, or a tensor of the op graph",
    "group": "the parameter group whose value it is",
    "unit": "the unit of the model in whose loop the event runs",
    "axes": "the mesh axes over which it runs, in order",
    "op": f"the operator of what sums over ranks: one of {', '.join(OPERATORS)}",
    "divisor": "what the result is divided by: a quotient of sizes, of counts of tokens and samples, and `padding`",
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
    "stream": "the stream on which it runs; compute where nothing is said, host what the host does as it issues",
    "ahead": "by how many turns of its innermost loop it is issued earlier",
    "behind": "the event of the same loop behind which it is issued",
    "wait": "the events that have to have ended before it begins",
    "into": "the buffer that it writes in place of the value's own place",
    "out_of": "the buffer that it reads in place of the value's own place",
    "of": "the stream for which a join waits: for all that it was given so far",
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
    "divisor": "products and quotients of axis sizes, m, tokens, count, samples, all_samples, padding and numbers up "
               "to 2**26",
    "layout": "NAME, or NAME(AXIS)",
    "wait": "PATH, { on = PATH, turn = -1 }, { on = PATH, turn = \"-K\" }, { on = PATH, step = -1 }, or a list; turn "
            "counts turns of the innermost loop that both are in, K is a ring's number of slots",
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
                said = row.says or (f"{key} is a key of [{table}], which says {TABLES[table].says}.",)
                yield Explained(key, f"key of [{table}]", (*said, *_values(row)))


def _values(row: Key) -> Iterator[str]:
    yield f"Accepted: {row.kind.words}."
    if row.default is not UNSAID and row.default not in ("", (), {}):
        yield f"Where nothing is said: {shown(row.default)}."
