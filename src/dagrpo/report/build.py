"""Stage `report`: from scores, metrics, rollouts and provenance to a page, its figures, and numbers for DVC."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.evaluation.outcomes import group_of
from dagrpo.files import atomic_file, write_json, write_text
from dagrpo.params.report import Report
from dagrpo.provenance.records import lineage_rows
from dagrpo.report import style
from dagrpo.report.comparison import TaskComparison, compare
from dagrpo.report.conversations import conversations
from dagrpo.report.curves import curves, to_csv
from dagrpo.report.examples import examples
from dagrpo.report.figures import NAMES, Drawn, draw_all, draw_conversations
from dagrpo.report.first_step import doubts
from dagrpo.report.inputs import Inputs
from dagrpo.report.page import Page, render
from dagrpo.report.parameters import recorded
from dagrpo.report.results import metrics_json, summary_markdown
from dagrpo.report.rollouts import first_and_last

FIGURE_FILES = tuple(f"{name}.{suffix}" for name in NAMES for suffix in ("png", "svg"))


def build(
    inputs: Inputs, report: Report, own_params: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Page:
    """Compute everything the page shows.

    `own_params`: the report's own part of params.yaml, to be shown as well; `overrides`: what makes the run a try.
    """
    comparisons = [compare(inputs, task) for task in inputs.tasks]
    recorded_curves = curves(inputs)
    phases = first_and_last(inputs, report.smoothing)
    talk = conversations(inputs, report.completions)
    parameters = recorded(inputs.provenance, own_params)
    return Page(
        inputs=inputs,
        comparisons=comparisons,
        curves=recorded_curves,
        figures=draw_all(recorded_curves, phases, comparisons, report.smoothing),
        examples={task: examples(inputs, task, report.completions) for task in inputs.tasks},
        conversations=talk,
        conversation_figures=draw_conversations(talk, recorded_curves, report.smoothing) if talk else (),
        lineage=lineage_rows(inputs.provenance),
        parameters=parameters,
        overrides=overrides or {},
        doubts=doubts(inputs, parameters),
    )


def write(page: Page, window: int, *, html: Path, metrics: Path, table: Path, summary: Path, figures: Path) -> None:
    """Write every output. `table`: the curves as CSV; `figures`: the folder of FIGURE_FILES; `window`: as for build."""
    for drawn in page.figures:
        _write_figure(drawn, figures)
    write_text(html, render(page))
    write_json(metrics, metrics_json(page.comparisons, page.curves, window))
    write_text(table, to_csv(page.curves))
    write_text(summary, summary_markdown(page.inputs.experiment, page.comparisons, page.overrides, page.doubts))


def _write_figure(drawn: Drawn, folder: Path) -> None:
    with atomic_file(folder / f"{drawn.name}.png") as temporary:
        temporary.write_bytes(style.to_png(drawn.figure))
    write_text(folder / f"{drawn.name}.svg", style.to_svg(drawn.figure, drawn.name))


def metrics_to_log(comparisons: Sequence[TaskComparison]) -> dict[str, float]:
    """The headline numbers for the run's record, by task."""
    return {
        f"{group_of(comparison.task, oracle=comparison.oracle)}/{metric.metric}_difference": metric.difference.value
        for comparison in comparisons
        for metric in comparison.metrics
    }
