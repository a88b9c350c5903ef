"""The table of frameworks in the page has the rows that `make watch-write` measures."""

from __future__ import annotations

from pathlib import Path

from framework_table import HEAD, PAGE, ROWS, cells, rows_in


def test_the_page_has_every_row_and_what_it_is_held_against() -> None:
    told = rows_in(PAGE.read_text())
    assert list(told) == [row.name for row in ROWS]
    for row in ROWS:
        _, strategy, ranks, verdict, *_, shims, plain, recorded, times = told[row.name]
        assert (strategy, shims) == (row.strategy, str(len(row.shims))) and int(ranks) in (2, 4)
        assert verdict == ("DIFFERS" if "asked" in row.name else "CONFORMS")
        assert float(recorded) > float(plain) > 0 and float(times) >= 1


def test_a_row_is_read_as_it_is_written() -> None:
    made = cells(ROWS[0], "CONFORMS", "1 of 1", "2 of 2", "0.10", "1.0", "10")
    assert rows_in(f"{HEAD}\n|---|\n{made}\n\nmore")[ROWS[0].name][-3:] == ["0.10", "1.0", "10"]


def test_what_a_row_names_is_there() -> None:
    for row in ROWS:
        folder = Path(__file__).parent / "frameworks"
        assert (folder / row.words[0]).is_file() and (folder / row.model).is_file()
        assert not row.strategy.endswith(".toml") or (folder / row.strategy).is_file()
