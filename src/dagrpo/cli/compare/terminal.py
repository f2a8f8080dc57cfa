"""A comparison on a terminal or in a pipe."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dagrpo.cli.compare.comparison import Comparison
from dagrpo.cli.compare.differences import RUNTIME, Difference
from dagrpo.cli.compare.scores import TaskPair
from dagrpo.cli.compare.wording import NOTHING_DIFFERS, RUNTIME_TITLE, is_better, others, scope, verdict
from dagrpo.core.escape import one_line
from dagrpo.report.format import metric_label, percent, percent_interval, points, points_interval

LONGEST = 60  # characters of a value
STYLES = {True: "bold green", False: "bold red", None: ""}


def shown(comparison: Comparison) -> RenderableType:
    """Return all of it: verdicts, scores, and what differs."""
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    for pair in comparison.pairs:
        yield Text(verdict(pair), style=STYLES[is_better(pair.metrics[0])] or "bold")
        if told := others(pair):
            yield Text(told)
        yield Text(scope(pair), style="dim")
        yield _scores(pair)
    yield from (Text(note, style="yellow") for note in comparison.notes)
    results = [each for each in comparison.differences if each.group != RUNTIME]
    runtime = [each for each in comparison.differences if each.group == RUNTIME]
    for title, found in (("What differs", results), (RUNTIME_TITLE, runtime)):
        if found:
            yield _differences(title, found, comparison.names)
    if not comparison.differences:
        yield Text(NOTHING_DIFFERS)


def _scores(pair: TaskPair) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in (pair.first, pair.second, "difference"):
        table.add_column(heading, overflow="fold")
    for metric in pair.metrics:
        table.add_row(
            metric_label(metric.name),
            f"{percent(metric.first.value)} ({percent_interval(metric.first)})",
            f"{percent(metric.second.value)} ({percent_interval(metric.second)})",
            Text(
                f"{points(metric.difference.value)} ({points_interval(metric.difference)})", STYLES[is_better(metric)]
            ),
        )
    return table


def _differences(title: str, found: Sequence[Difference], names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, overflow="fold")
    group = ""
    for each in found:
        values = [one_line(value, LONGEST) for value in each.values]
        table.add_row("" if each.group == group else each.group, one_line(each.name, LONGEST), *values)
        group = each.group
    return table
