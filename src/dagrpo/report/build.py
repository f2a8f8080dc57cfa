"""Stage `report`: builds the page, its figures, and numbers for DVC."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.evaluation.outcomes import group_of
from dagrpo.report import style
from dagrpo.report.breakdowns import breakdown
from dagrpo.report.comparison import TaskComparison, compare, compare_chosen
from dagrpo.report.components import correlations, exploited, reward_components
from dagrpo.report.config import Report
from dagrpo.report.conversations import call_shares, conversations, turns_and_calls
from dagrpo.report.curves import curves, to_csv
from dagrpo.report.examples import examples
from dagrpo.report.figures.comparison import base_vs_trained
from dagrpo.report.figures.held_out import held_out_accuracy
from dagrpo.report.figures.policies import policy_scores, scores_over_steps
from dagrpo.report.figures.training import (
    by_task,
    completion_length,
    learning_curve,
    logprob_difference,
    reward_distribution,
)
from dagrpo.report.first_step import doubts
from dagrpo.report.inputs import Inputs
from dagrpo.report.over_steps import over_steps
from dagrpo.report.page import Page, render
from dagrpo.report.parameters import recorded, software
from dagrpo.report.results import chosen_markdown, metrics_json, scores_csv, summary_markdown
from dagrpo.report.rollouts import first_and_last, left_out
from dagrpo.utils.files import write_text
from dagrpo.utils.provenance import lineage_rows

NAMES = ("base_vs_trained", "learning_curve", "reward_distribution", "completion_length", "logprob_difference")
FIGURE_FILES = tuple(f"{name}.svg" for name in NAMES)


def build(
    inputs: Inputs,
    report: Report,
    own_params: Mapping[str, Any],
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> Page:
    """Compute everything the page shows.

    own_params: the report's part of params.yaml, shown as well; defaults: of all parameters, by section;
    overrides: the parameters that make it an override run.
    """
    window = report.smoothing
    comparisons = [compare(inputs, task) for task in inputs.tasks]
    recorded_curves = curves(inputs)
    phases = first_and_last(inputs, window)
    talk = conversations(inputs, report.completions)
    parameters = recorded(inputs.provenance, own_params, defaults)
    with style.house_style():
        figures = [
            base_vs_trained(comparisons),
            learning_curve(recorded_curves, window),
            reward_distribution(phases),
            completion_length(recorded_curves, phases, window),
            logprob_difference(recorded_curves),
        ]
        components = reward_components(recorded_curves, correlations(inputs, recorded_curves, window), window)
        scores = policy_scores(inputs)
        of_some = [
            by_task(recorded_curves, window),
            components,
            held_out_accuracy(inputs),
            scores_over_steps(inputs, scores),
        ]
        of_talk = [turns_and_calls(recorded_curves, window), call_shares(talk.shares)] if talk else []
    return Page(
        inputs=inputs,
        comparisons=comparisons,
        chosen=compare_chosen(inputs),
        policy_scores=scores,
        curves=recorded_curves,
        figures=figures,
        training_figures=[each for each in of_some if each is not None],
        conversation_figures=[each for each in of_talk if each is not None],
        examples={task: examples(inputs, task, report.completions) for task in inputs.tasks},
        conversations=talk,
        breakdowns={task: breakdown(inputs, task) for task in inputs.tasks},
        over_steps=over_steps(inputs, report.prompts),
        left_out=left_out(inputs, inputs.seeds[0]),
        lineage=lineage_rows(inputs.provenance),
        parameters=parameters,
        overrides=overrides or {},
        software=software(inputs.provenance),
        doubts=[*doubts(inputs, parameters), *exploited(recorded_curves)],
    )


def write(
    page: Page, window: int, *, html: Path, metrics: Path, scores: Path, table: Path, summary: Path, figures: Path
) -> None:
    """Write every output. `table`: the curves as CSV; `figures`: the folder of FIGURE_FILES; `window`: as for build."""
    for each in page.figures:
        write_text(figures / f"{each.name}.svg", each.svg())
    write_text(html, render(page))
    numbers = metrics_json(page.comparisons, page.curves, window, page.chosen)
    write_text(
        metrics, json.dumps(numbers, indent=2, allow_nan=False) + "\n"
    )  # in their order, which is that of DVC's columns
    write_text(scores, scores_csv(page.comparisons, page.policy_scores, page.chosen))
    write_text(table, to_csv(page.curves))
    chosen = chosen_markdown(page.chosen, page.inputs.choices)
    write_text(
        summary, summary_markdown(page.inputs.experiment, page.comparisons, page.overrides, page.doubts) + chosen
    )


def metrics_to_log(comparisons: Sequence[TaskComparison]) -> dict[str, float]:
    """Return the headline numbers for the run's record, by task."""
    return {
        f"{group_of(comparison.task, oracle=comparison.oracle)}/{metric.name}_difference": metric.difference.value
        for comparison in comparisons
        for metric in comparison.metrics
    }
