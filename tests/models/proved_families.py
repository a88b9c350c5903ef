"""Every family under data, sharded, tensor and expert parallelism: proved for all sizes, simulated at small ones.

`make models` asks for all of them, and keeps in the table which strategies passed; families whose graphs are one are
asked once. A family that lets a file say the kind of each layer is asked of a model of several kinds, too.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from random_configs import REQUIRED
from random_dims import settings

from placealg.check.prove import prove
from placealg.models.config import from_config
from placealg.models.family import families, family
from placealg.models.model import Model
from placealg.models.rule import names
from placealg.prover.verdict import PROVED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

MIXED = "several kinds of layers"
OTHERS = ("full_attention", "sliding_attention")
"""The kinds of layers of a family that names no kinds of its own."""


@cache
def model(name: str, mixed: bool = False) -> Model:
    """The family's default configuration, or one of six layers of several kinds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        some, other = (family(name).kinds or OTHERS)[:2]
        more = {"layer_types": [other, some, other] * 2, names(family(name).sizes["L"])[0]: 6} if mixed else {}
        path.write_text(json.dumps({"model_type": name, **REQUIRED.get(name, {}), **more}), encoding="utf-8")
        return from_config(path)


def strategies(of: Model) -> tuple[str, ...]:
    """The strategies that its parts call for."""
    return ("dp", "zero3", "tp_sp") + (("zero1*ep",) if any(op.kind == "route" for op in of.graph.ops) else ())


def models() -> Iterator[tuple[str, bool]]:
    """Each family, and whether its layers are of several kinds."""
    for name in families():
        yield name, False
        if "layer_types" in family(name).read:
            yield name, True


def graphs() -> Mapping[tuple[str, bool], tuple[str, bool]]:
    """Each model -> the first whose graph is the same."""
    first: dict[Any, tuple[str, bool]] = {}
    found = {}
    for name, mixed in models():
        graph = model(name, mixed).graph
        key = (graph.ops, tuple(graph.tensors.items()), graph.loops)
        found[name, mixed] = first.setdefault(key, (name, mixed))
    return found


def fault(name: str, mixed: bool, text: str) -> str:
    """What is wrong of the model's step under a strategy; "" where it is proved, and simulated without a difference."""
    step = derive(parse_strategy(text), model(name, mixed))
    verdict = prove(step).verdict
    if verdict != PROVED:
        return str(verdict)
    return "" if simulate(step, next(iter(settings(step)))).difference is None else "simulated otherwise"


def passed() -> dict[str, dict[str, Any]]:
    """Family -> strategy -> "passed" where its model is proved and simulated, "as NAME" where the graph is another's.

    A strategy of the model of several kinds of layers says so after it; what does not pass is told in its place.
    """
    asked: dict[tuple[tuple[str, bool], str], str] = {}
    found: dict[str, dict[str, Any]] = {}
    for (name, mixed), same in graphs().items():
        row = found.setdefault(name, {})
        for text in strategies(model(name, mixed)):
            if (same, text) not in asked:
                asked[same, text] = fault(*same, text)
                print(f"{name}: {text}{' of ' + MIXED if mixed else ''} "
                      f"{asked[same, text] or 'proved and simulated'}", flush=True)
            told = f"{text} of {MIXED}" if mixed else text
            row[told] = asked[same, text] or ("passed" if same == (name, mixed) else f"as {same[0]}")
    return found
