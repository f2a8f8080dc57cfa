"""The page of benchmarks is rendered from the recorded figures."""

import pytest
from benchmarks import figures
from benchmarks.gpu.table import BEGIN, END


def test_the_page_is_the_rendering_of_the_recorded_figures() -> None:
    text = figures.PAGE.read_text()
    on_a_gpu = text.partition(BEGIN)[2].partition(END)[0]
    assert figures.page(figures.read(), on_a_gpu) == text, "run `python -m benchmarks.figures`"


def test_a_printed_table_replaces_the_rows_of_one_and_no_other() -> None:
    tables = figures.read()
    printed = "5 rounds\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    replaced = figures.replaced(tables, "Staleness", printed, "one core")
    changed = [new for old, new in zip(tables, replaced, strict=True) if old != new]
    assert [(table.title, table.columns, table.rows, table.machine) for table in changed] == [
        ("Staleness", ["a", "b"], [["1", "2"]], "one core")
    ]
    with pytest.raises(SystemExit, match="No table is called 'Stale'"):
        figures.replaced(tables, "Stale", printed, "one core")
