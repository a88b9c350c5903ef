"""Orders of pipelines as CSV: rows that are an order's own are that order, others stand; errors are told."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from placealg.errors import InputError
from placealg.importers.read import read
from placealg.step.pipeline import Pipeline, work

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
