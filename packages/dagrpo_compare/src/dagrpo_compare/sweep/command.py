"""Command `dagrpo sweep`, on a terminal, as a page or JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import PARAMS, Html, columns, complete_sweeps, print_json
from dagrpo.config.schema import read_params
from dagrpo.core.escape import one_line
from dagrpo.report import format
from dagrpo.report.format import percent, percent_interval, plural, points, points_interval
from dagrpo.report.html import render_html
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import write_text
from dagrpo_compare.sweep.results import CellScore, SweepResults, TaskResults, read_results, value_in_words

LONGEST = 60  # characters of a value
NOTHING_FINISHED = "No cell has scores yet."
STYLES = {True: "bold green", False: "bold red", None: ""}


def sweep(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP", help="name of a sweep in presets/sweeps, or a file", autocompletion=complete_sweeps
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: one object")] = False,
    html: Html = None,
) -> None:
    """Compare the finished cells of a sweep over the experiment of params.yaml; `snakemake --config sweep=SWEEP` runs them."""
    results = read_results(name, read_params(PARAMS))
    if html is not None:
        write_text(html, render(results))
    if as_json:
        print_json(asdict(results))
    else:
        plain_console().print(Group(*_parts(results)), soft_wrap=False)


def headline(results: TaskResults) -> str:
    """Return the best cell by its score, and whether it differs from the reference when all comparisons are counted."""
    best = max(results.scores, key=lambda each: each.score.value)
    score = f"{percent(best.score.value)} ({percent_interval(best.score)})"
    if best.difference is None or best.together is None:
        return f"{results.task}: no cell scored higher than {best.folder}, {score}."
    change = f"{points(best.difference.value)} points to {results.reference}"
    if best.together.low > 0:
        return f"{results.task}: {best.folder} scored highest, {score}, and differs from the reference: {change}."
    return f"{results.task}: {best.folder} scored highest, {score}; no difference shown to the reference ({change})."


def scope(results: TaskResults) -> str:
    """Return sentences on pairing, on the number of comparisons, on the choice of the best, and on the least difference shown."""
    if not results.comparisons:
        return f"Differences are to {results.reference}; no other cell can be compared with it yet."
    by_chance = results.comparisons * (1 - results.confidence)
    seeds = sorted({each.seeds for each in results.scores})
    of_seeds = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    least = median(each.detectable for each in results.scores if each.detectable is not None)
    met = f"{of_seeds}, {plural(results.problems, 'problem')}"
    level, together = f"{100 * results.confidence:g}%", f"{100 * results.confidence_together:.4g}%"
    return (
        f"Differences are to {results.reference}, paired by problem and seed ({met}). {plural(results.comparisons, 'comparison')}: with "
        f"{level} intervals, {by_chance:.2g} of them would exclude 0 by chance alone; those of all together ({together}, Bonferroni) "
        f"hold all at once with {level}. The highest score was chosen on these problems and is too high by an unknown amount: confirm "
        f"it with further seeds, or on other problems. A difference of {100 * least:.1f} points is shown four times in five."
    )


def is_better(score: CellScore) -> bool | None:
    """Return True if a cell is better than the reference with all comparisons counted; None if its interval includes 0."""
    if score.together is None or score.together.low <= 0 <= score.together.high:
        return None
    return score.together.low > 0


def _parts(results: SweepResults) -> Iterator[RenderableType]:
    for task in results.tasks:
        yield Text(headline(task), style="bold")
        yield Text(scope(task), style="dim")
        yield _scores(results, task)
        yield from (Text(note, style="yellow") for note in task.notes)
    if not results.tasks:
        yield Text(NOTHING_FINISHED)
    if results.unfinished:
        yield Text(unfinished(results))


def unfinished(results: SweepResults) -> str:
    """Return a sentence on the cells without scores, and the command that runs them."""
    folders = ", ".join(folder for folder, _ in results.unfinished)
    count = plural(len(results.unfinished), "cell")
    return f"{count} without scores: {folders}. Run with: snakemake --cores all target --config sweep={results.sweep}"


def _scores(results: SweepResults, task: TaskResults) -> Table:
    table = columns(*results.axes, "score", "difference", "all together", "experiment")
    for score in task.scores:
        values = [one_line(value_in_words(score.values.get(axis)), LONGEST) for axis in results.axes]
        change = "reference" if score.folder == task.reference else "-"
        if score.difference is not None:
            change = f"{points(score.difference.value)} ({points_interval(score.difference)})"
        table.add_row(
            *values,
            f"{percent(score.score.value)} ({percent_interval(score.score)})",
            change,
            Text("" if score.together is None else points_interval(score.together), STYLES[is_better(score)]),
            score.folder,
        )
    return table


def render(results: SweepResults) -> str:
    """Return the results as one HTML page."""
    from dagrpo_compare.sweep.figure import against_axes

    return render_html(
        Path(__file__).with_name("page.html.j2"),
        results=results,
        figures={task.task: against_axes(task, results.axes, number) for number, task in enumerate(results.tasks)},
        headline=headline,
        scope=scope,
        unfinished=unfinished,
        is_better=is_better,
        value_in_words=value_in_words,
        words=format,
        nothing_finished=NOTHING_FINISHED,
    )
