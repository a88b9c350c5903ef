"""Orders of pipelines as torch.distributed.pipelining writes them: a CSV with a row of actions for each rank."""

from __future__ import annotations

import re
from pathlib import Path

from placealg.errors import InputError
from placealg.importers.composed_strategy import Parts
from placealg.importers.document import Document, read_text
from placealg.importers.draft import Draft
from placealg.importers.further_files import beside
from placealg.importers.key_log import Said
from placealg.importers.reading import Options, Reading
from placealg.step.actions import Table, read_table
from placealg.step.pipeline import ORDERS, Pipeline, work

NAMES = {"1f1b": "pp", "gpipe": "pp_gpipe", "interleaved": "pp_interleaved", "zb_h1": "pp_zb_h1", "zb_h2": "pp_zb_h2",
         "interleaved_zb": "pp_interleaved_zb", "zb_v": "pp_zb_v", "dualpipe_v": "pp_dualpipe_v"}
"""Order -> its name in the catalogue."""


def is_rows(text: str) -> bool:
    r"""Whether a text is rows of actions: each line begins with one, or with an empty cell.

    >>> is_rows("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"), is_rows("a,b\n1,2\n")
    (True, False)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(re.match(r",*\s*\(?\d+(?:F|I|W|B|UNSHARD|SEND_F|RECV_F)", line) for line in lines)


def rows_of(text: str) -> tuple[str, ...]:
    """The rows of a CSV; the last lines, where empty, are none."""
    return tuple(line.strip().replace('"', "") for line in text.rstrip().splitlines())


def table_of(rows: tuple[str, ...], file: str) -> Table:
    """The table of rows; an InputError says the row and the column."""
    try:
        return read_table(rows)
    except InputError as error:
        raise error.at(file) from None


def read_pipeline_csv(document: Document, options: Options) -> Reading:
    """The reading of a file of actions: the order that they are, or the actions themselves, at their sizes."""
    draft = Draft("pipeline_csv", document, options)
    place_order(draft.parts, draft.said, rows_of(document.text), document.file, "rows")
    for key in ("[types]", "recompute", "loss", "states"):
        draft.said.unsaid(key, "the script that runs the schedule decides")
    return draft.reading()


def order_of(table: Table) -> str:
    """The order here whose items the rows are, at their sizes; "" where they are of none."""
    for order in ORDERS:
        pipeline = Pipeline("pp", order, table.chunks)
        fits = pipeline.folded is table.folded and (table.chunks == 1 or order in ("interleaved", "interleaved_zb")
                                                    or pipeline.folded) and pipeline.splits is table.splits
        if not fits or (pipeline.grouped and table.microbatches % table.ranks):
            continue
        actions = Pipeline("pp", order, table.chunks, actions=tuple(_text(row) for row in table.rows))
        if all(work(pipeline, k, table.ranks, table.microbatches) == work(actions, k, table.ranks, table.microbatches)
               for k in range(table.ranks)):
            return order
    return ""


def _text(row: tuple[object, ...]) -> str:
    return ",".join(map(repr, row))


def place_order(parts: Parts, said: Said, rows: tuple[str, ...], file: str, key: str) -> Table:
    """Put a pipeline of these rows in: by the order's name where they are one without messages, else as actions."""
    table = table_of(rows, file)
    known = "" if table.messages or any("SHARD" in row or "REDUCE" in row for row in rows) else order_of(table)
    order = known or ("zb_v" if table.folded else {
        (False, False): "1f1b", (False, True): "zb_h1", (True, False): "interleaved", (True, True): "interleaved_zb"}[
        table.chunks > 1, table.splits])
    parts.axis(NAMES[order], table.ranks)
    if table.chunks > 1 and not table.folded:
        parts.say("schedule", "chunks", table.chunks)
    parts.say("schedule", "microbatches", table.microbatches)
    count = sum(map(len, table.rows))
    told = f"{count} actions on {table.ranks} ranks, {table.chunks} chunk{'s' * (table.chunks > 1)} each, "
    told += f"{table.microbatches} microbatch{'es' * (table.microbatches > 1)}"
    if not known:
        parts.say("schedule", "actions", list(rows))
    text = f"{NAMES[order]}: {told}, which are those of the order" if known else \
        f"[schedule] actions: {told}, held to the obligations of a pipeline at these sizes"
    if said.has(key):
        said.read(key, text, Path(file).name)
    else:
        said.follows(key, text)
    return table


def rows_beside(named: str, said: Said, options: Options, key: str) -> tuple[tuple[str, ...], str]:
    """(rows, file) of the CSV that a configuration names; a refusal where it is not here."""
    path = beside(named, said.document.file, options)
    if path is None:
        raise said.refuse(key, f"{named} decides the order of the pipeline, another file, which is not here",
                          "give it with --with")
    return rows_of(read_text(path)), path
