"""Orders of pipelines as CSV: rows that are an order's own are that order, others stand; errors are told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.importers.read import read
from placealg.models.transformer import gpt
from placealg.render.order_drawing import draw_order, order_of
from placealg.step.derive import derive
from placealg.step.pipeline import Pipeline, work
from placealg.strategy.expression import parse_strategy

SHAPES = [("1f1b", 1, "pp"), ("gpipe", 1, "pp_gpipe"), ("interleaved", 2, "pp_interleaved"),
          ("interleaved_zb", 2, "pp_interleaved_zb"), ("zb_v", 2, "pp_zb_v"), ("dualpipe_v", 2, "pp_dualpipe_v")]


def rows(order: str, chunks: int, ranks: int, microbatches: int) -> list[list[str]]:
    pipeline = Pipeline("pp", order, chunks)
    kinds = {"forward": "F", "backward": "I" if pipeline.splits else "B", "weights": "W"}
    return [[f"{pipeline.own(rank, ranks)[i.chunk]}{kinds[i.phase]}{i.microbatch}"
             for i in work(pipeline, rank, ranks, microbatches)] for rank in range(ranks)]


@pytest.mark.parametrize(("order", "chunks", "name"), SHAPES)
def test_rows_of_an_order_are_the_order(tmp_path: Path, order: str, chunks: int, name: str) -> None:
    rng, file = random.Random(order), tmp_path / "order.csv"
    for ranks, microbatches in ((2, 4), (3, 6)):
        table = rows(order, chunks, ranks, microbatches)
        for row in table:
            row.insert(rng.randrange(len(row)), "")
        file.write_text("".join(",".join(row) + rng.choice(("\n", "\r\n")) for row in table), encoding="utf-8")
        found = read(file)
        assert (found.expression, found.strategy.mesh["pp"].size) == (name, ranks)
        assert int(found.strategy.option("schedule", "microbatches")) == microbatches
        assert found.strategy.option("schedule", "actions") == ()
        table[0].append(table[0].pop(0))
        file.write_text("\n".join(map(",".join, table)), encoding="utf-8")
        assert read(file).strategy.option("schedule", "actions") == tuple(map(",".join, table))


@pytest.mark.parametrize(("text", "message"), [
    ("0F0,0B0\n1F0,1X0\n", "order.csv: row 2, column 2: '1X0' is no action such as 0F1"),
    ("0F0,0B0\n\n1F0,1B0\n", "2 stages on 3 ranks"),
    ("0F0,(0F1;0B)OVERLAP_F_B\n1F0,1B0\n", "row 1, column 2: '0B' is no action"),
])
def test_errors_of_the_format(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "order.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read(file)


TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
[parallelism]
pipeline_parallel_degree = {ranks}
pipeline_parallel_schedule = "PipelineScheduleMulti"
pipeline_parallel_schedule_csv = "conf/order.csv"
pipeline_parallel_microbatch_size = 1
data_parallel_shard_degree = 2
"""


def test_torchtitan_s_key_names_a_file(tmp_path: Path) -> None:
    job, order = tmp_path / "job.toml", tmp_path / "order.csv"
    job.write_text(TITAN.format(ranks=2), encoding="utf-8")
    with pytest.raises(InputError, match=r"job\.toml:9: conf/order\.csv decides the order of the pipeline"):
        read(job)
    order.write_text("\n".join(map(",".join, rows("interleaved", 2, 2, 4))), encoding="utf-8")
    found = read(job)
    assert found.expression == "zero3*pp_interleaved"
    assert sum(found.strategy.option("schedule", "stages")) == 32
    table = rows("interleaved", 2, 2, 4)
    table[1][-1], table[1][-2] = table[1][-2], table[1][-1]
    order.write_text("\n".join(map(",".join, table)), encoding="utf-8")
    assert read(job).strategy.option("schedule", "actions") == tuple(map(",".join, table))
    job.write_text(TITAN.format(ranks=4), encoding="utf-8")
    with pytest.raises(InputError, match=r"conf/order\.csv is of 2 ranks, and the degree is 4"):
        read(job)


def test_an_order_that_does_not_run_is_told(tmp_path: Path, placealg: Callable[..., Outcome]) -> None:
    """By the words of the verdict, with exit code 1 as of a refuted one; in drawn orders two actions change place."""
    file = tmp_path / "order.csv"
    for seed, text in enumerate(("0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n", *map(exchanged, range(6)))):
        file.write_text(text, encoding="utf-8")
        found = read(file)
        told = placealg("import", str(file))
        assert told.code == bool(found.faults) and ("does not run: " in told.out) == bool(found.faults), text
        if not seed:
            assert found.faults == ("rank 1: 1B0 (action 1) needs 1F0 (action 2), which stands behind it",)
        if not seed:
            assert prove(derive(found.strategy, gpt())).verdict == ("REFUTED" if found.faults else "PROVED")


def exchanged(seed: int) -> str:
    """An order of which two actions of a rank stand in each other's place."""
    rng = random.Random(seed)
    order, chunks, _ = rng.choice(SHAPES)
    table = rows(order, chunks, 2, 4)
    row = table[rng.randrange(2)]
    a, b = rng.sample(range(len(row)), 2)
    row[a], row[b] = row[b], row[a]
    return "\n".join(map(",".join, table)) + "\n"


def test_an_order_is_drawn(tmp_path: Path, placealg: Callable[..., Outcome]) -> None:
    """A box per action with its tooltip; what never starts is told, and nothing lies outside of the picture."""
    file, out = tmp_path / "order.csv", tmp_path / "order.svg"
    file.write_text("0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n", encoding="utf-8")
    assert placealg("show", str(file), "--order", str(out)).code == 0
    text = out.read_text(encoding="utf-8")
    assert text.count("<title>") - text.count("<title>the order") == 8 and text.count("which never starts") == 7
    for rows_, width in (((2, 4), 460), ((4, 64), 1180)):
        step = derive(parse_strategy("pp_interleaved"), gpt())
        picture = draw_order(order_of(step, {"pp": rows_[0], "m": rows_[1]}), "order")
        assert picture.width >= width
        boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', str(picture))
        assert max(float(x) + float(w) for x, w in boxes) <= picture.width
    with pytest.raises(InputError, match="has no pipeline"):
        order_of(derive(parse_strategy("zero1"), gpt()), {})
