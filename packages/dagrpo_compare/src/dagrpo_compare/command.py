"""Command `dagrpo compare`, on a terminal, as a page or JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import Html, Which, columns, complete_experiments, print_json
from dagrpo.core.escape import one_line
from dagrpo.report import format
from dagrpo.report.comparison import MetricComparison
from dagrpo.report.format import (
    least_shown,
    metric_label,
    percent,
    percent_interval,
    plural,
    points,
    points_interval,
)
from dagrpo.report.html import render_html
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import write_text
from dagrpo_compare import comparison as comparisons
from dagrpo_compare.comparison import RUNTIME, Comparison, Difference, TaskPair

WORDS = {"better": True, "worse": False}
NOTHING_DIFFERS = "On record, nothing differs between them in parameters, data, code, environment or runtime."
RUNTIME_TITLE = "Runtime settings that differ (they change results only by rounding)"
LONGEST = 60  # characters of a value
STYLES = {True: "bold green", False: "bold red", None: ""}


def compare(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C ...]",
            help="names of experiments, or folders; A@40: the policy of step 40",
            autocompletion=complete_experiments,
        ),
    ],
    which: Annotated[Which, typer.Option(help="policy to compare: base or trained")] = "trained",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: one object")] = False,
    html: Html = None,
) -> None:
    """Compare experiments: which is better, by how much, and the differences in parameters, data, code, environment and runtime."""
    comparison = comparisons.compare(experiments, which)
    if html is not None:
        write_text(html, render(comparison))
    if as_json:
        print_json(as_object(comparison))
    else:
        plain_console().print(Group(*render_parts(comparison)), soft_wrap=False)


def verdict(pair: TaskPair) -> str:
    """Return the result on one task in a sentence, by greedy accuracy."""
    greedy = pair.metrics[0]
    change = f"{points(greedy.difference.value)} points, {100 * pair.confidence:g}% interval {points_interval(greedy.difference)}"
    scores = f"{percent(greedy.second.value)} of {pair.second} against {percent(greedy.first.value)} of {pair.first}"
    if not greedy.is_significant:
        neither = f"{pair.task}: no difference shown between {pair.second} and {pair.first} ({scores}: {change})."
        return f"{neither} {least_shown(greedy.difference, greedy.detectable, pair.problems, max(1, len(pair.seeds)))}".strip()
    word = "better" if greedy.difference.value > 0 else "worse"
    return f"{pair.task}: {pair.second} is {word} than {pair.first} ({scores}: {change})."


def scope(pair: TaskPair) -> str:
    """Return a sentence on the problems and seeds that the interval covers."""
    text = f"Paired over {plural(pair.problems, 'problem')} that both have met"
    text += f", {pair.left_out:,} met by one alone left out" if pair.left_out else ""
    if not pair.seeds:
        return (
            f"{text}; they share no seed: each one's seeds are averaged, and the interval says nothing of other seeds."
        )
    if len(pair.seeds) == 1:
        return f"{text}, and seed {pair.seeds[0]} alone: the interval says nothing of other seeds."
    return f"{text}, and the {len(pair.seeds)} seeds of both; the interval resamples problems and seeds."


def others(pair: TaskPair) -> str:
    """Return a sentence on the metrics that contradict greedy accuracy; "" without any."""
    greedy, *rest = pair.metrics
    parts = []
    for word, expected in WORDS.items():
        names = [metric_label(each.name) for each in rest if is_better(each) is expected]
        if names and is_better(greedy) is not expected:
            parts.append(f"{word} by {', '.join(names)}")
    return f"{pair.second} is {' and '.join(parts)}." if parts else ""


def is_better(metric: MetricComparison) -> bool | None:
    """Return True if the second experiment is better; None if the interval includes 0."""
    return metric.difference.value > 0 if metric.is_significant else None


def render_parts(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield verdicts, scores and differences for a terminal."""
    for pair in comparison.pairs:
        yield Text(verdict(pair), style=STYLES[is_better(pair.metrics[0])] or "bold")
        if text := others(pair):
            yield Text(text)
        yield Text(scope(pair), style="dim")
        yield _scores(pair)
    yield from (Text(note, style="yellow") for note in comparison.notes)
    results = [each for each in comparison.differences if each.group != RUNTIME]
    runtime = [each for each in comparison.differences if each.group == RUNTIME]
    for title, rows in (("What differs", results), (RUNTIME_TITLE, runtime)):
        if rows:
            yield _differences(title, rows, comparison.names)
    if not comparison.differences:
        yield Text(NOTHING_DIFFERS)


def _scores(pair: TaskPair) -> Table:
    table = columns("", pair.first, pair.second, "difference")
    for metric in pair.metrics:
        scores = [f"{percent(each.value)} ({percent_interval(each)})" for each in (metric.first, metric.second)]
        change = f"{points(metric.difference.value)} ({points_interval(metric.difference)})"
        table.add_row(metric_label(metric.name), *scores, Text(change, STYLES[is_better(metric)]))
    return table


def _differences(title: str, rows: Sequence[Difference], names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    for name in names:
        table.add_column(name, overflow="fold")
    group = ""
    for each in rows:
        values = [one_line(value, LONGEST) for value in each.values]
        table.add_row("" if each.group == group else each.group, one_line(each.name, LONGEST), *values)
        group = each.group
    return table


def render(comparison: Comparison) -> str:
    """Return a comparison as one HTML page."""
    groups = [(group, list(members)) for group, members in groupby(comparison.differences, lambda each: each.group)]
    return render_html(
        Path(__file__).with_name("page.html.j2"),
        comparison=comparison,
        groups=groups,
        verdict=verdict,
        others=others,
        scope=scope,
        words=format,
        nothing_differs=NOTHING_DIFFERS,
        runtime_title=RUNTIME_TITLE,
    )


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON."""
    return {
        "experiments": list(comparison.names),
        "policy": comparison.policy,
        "pairs": [
            asdict(pair) | {"verdict": verdict(pair), "others": others(pair), "scope": scope(pair)}
            for pair in comparison.pairs
        ],
        "notes": list(comparison.notes),
        "differences": [
            {"group": each.group, "name": each.name, "values": dict(zip(comparison.names, each.values, strict=True))}
            for each in comparison.differences
        ],
    }
