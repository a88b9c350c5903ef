"""What a browser's worker calls: a strategy as text and a model's name, and what is said of them, as JSON."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.cases.case import CommandCase
from placealg.check.prove import judge
from placealg.cli.glosses import SAYS
from placealg.cli.kernel_line import kernel_of
from placealg.cli.output import json_text
from placealg.cli.parser import parse_arguments
from placealg.cli.readers import proof_document, read_cases
from placealg.cli.report import told
from placealg.cli.resemblance import resembled
from placealg.errors import InputError
from placealg.progress import Listener, listening, remarking
from placealg.render.proof import SAYS as MEANS
from placealg.render.report import refutation, report, verdict
from placealg.strategy.file import proofs_folder

FILE = "strategy.toml"
"""What the page's text is called where it is a file, as messages say."""

Said = dict[str, Any]


def costs(text: str, model: str) -> Said:
    """The page of placements, formulas and program, and the events by which edits are written."""
    case, _ = _read(text, model)
    one = told(case)
    return {"name": case.strategy.name, "model": case.model.name, "page": report((one,), SAYS),
            "events": [event.path for event in case.step.events]}


def proof(text: str, model: str) -> Said:
    """The verdict: `document` is what `prove --format json --no-timing` prints, the rest the same as HTML and words.

    A repair stands apart from the counterexample: who learns looks for it first.
    """
    case, chosen = _read(text, model)
    found, _ = judge(case.step, case.lead, file=case.edited, token_mean=case.token_mean)
    verified, alike = kernel_of(chosen, case, found), resembled(case, found)
    shown = found.counterexample
    return {"document": json_text(proof_document(found, verified, alike, timing=False)),
            "verdict": str(found.verdict), "class": found.cls or "", "strategy": found.strategy, "model": found.model,
            "says": MEANS.get((found.verdict, found.cls or ""), found.why_undecided or ""),
            "kernel": verified.text(found), "page": verdict(found, SAYS), "resembles": list(alike or ()),
            "counterexample": refutation(replace(shown, repair=None)) if shown else "",
            "repair": {"edit": shown.repair.edit, "file": shown.repair.file, "cost": shown.repair.cost}
            if shown and shown.repair else None}


CALLS: Mapping[str, Callable[[str, str], Said]] = {"costs": costs, "proof": proof}


def answer(call: str, text: str, model: str, hear: Listener = lambda text: None) -> str:
    """What a call says, as JSON; bad input as `error` with its `line`, 0 where it has none. `hear` is told of progress.

    >>> json.loads(answer("costs", "zero4", ""))["error"].partition(";")[0]
    "strategy 'zero4', column 1: unknown strategy 'zero4'"
    """
    warned = io.StringIO()
    with redirect_stderr(warned):
        try:
            with listening(hear), remarking():
                said = CALLS[call](text, model)
        except InputError as error:
            return json.dumps(_error(str(error)))
        except MemoryError:
            return json.dumps(_error("UNDECIDED: out of memory"))
    remarks = [line.removeprefix("placealg: ") for line in warned.getvalue().splitlines()]
    return json.dumps({**said, "remarks": [_error(line) for line in remarks]}, ensure_ascii=False)


def settle(folder: Path) -> None:
    """Work in a folder beside which the files that come with placealg lie, so that the text of one finds another."""
    folder.mkdir(parents=True, exist_ok=True)
    for there in proofs_folder("").iterdir():
        if there.is_dir() and not (folder.parent / there.name).exists():
            (folder.parent / there.name).symlink_to(there, target_is_directory=True)
    os.chdir(folder)


def is_file(text: str) -> bool:
    """Whether a text is a strategy file rather than an expression, which has no `=`, no table and no second line.

    >>> is_file("zero3*tp_sp"), is_file('base = "zero3"'), is_file("# nothing"), is_file("[mesh]")
    (False, True, True, True)
    """
    return re.search(r"^\[|[=\n#]", text.strip()) is not None


def _read(text: str, model: str) -> tuple[CommandCase, Any]:
    word = text.strip()
    if not word:
        raise InputError("nothing is written: an expression such as zero3*tp_sp, or a strategy file")
    if is_file(text):
        Path(FILE).write_text(text, encoding="utf-8")
        word = FILE
    chosen = parse_arguments(["prove", word, "--format", "json", "--no-timing", *(["--model", model] if model else [])])
    case, = read_cases(chosen)
    return case, chosen


def _error(text: str) -> Said:
    placed = re.match(rf"(?:{re.escape(FILE)}(?::(\d+))?: )?(.*)", text, re.DOTALL)
    assert placed is not None
    return {"error": placed[2], "line": int(placed[1] or 0)}
