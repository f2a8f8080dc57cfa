"""The numbers of the report for other programs: metrics.json for DVC, summary.md for the end of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagrpo.report.comparison import MetricComparison, TaskComparison
from dagrpo.report.curves import Curves, moving_average
from dagrpo.report.wording import (
    about_try,
    headline,
    interpretation,
    metric_label,
    percent,
    percent_interval,
    points,
    points_interval,
)

Numbers = dict[str, dict[str, dict[str, float]] | dict[str, float]]


def metrics_json(comparisons: Sequence[TaskComparison], curves: Curves, window: int) -> Numbers:
    """Flat numbers under evaluation.<task> and training."""
    return {
        "evaluation": {comparison.label: _task_numbers(comparison) for comparison in comparisons},
        "training": training_numbers(curves, window),
    }


def _task_numbers(comparison: TaskComparison) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for metric in comparison.metrics:
        numbers |= {
            f"{metric.metric}_base": metric.base.value,
            f"{metric.metric}_trained": metric.trained.value,
            f"{metric.metric}_difference": metric.difference.value,
            f"{metric.metric}_difference_low": metric.difference.low,
            f"{metric.metric}_difference_high": metric.difference.high,
        }
    return numbers


def training_numbers(curves: Curves, window: int) -> dict[str, float]:
    """Means over seeds and over the first and the last `window` steps; the last step's where the name says nothing."""
    reward = moving_average(curves["reward/mean"], window)
    first = min(window, reward.shape[1]) - 1
    return {
        "steps": float(len(curves.steps)),
        "reward/mean_first": float(reward[:, first].mean()),
        "reward/mean_last": float(reward[:, -1].mean()),
        "policy/entropy_last": float(moving_average(curves["policy/entropy"], window)[:, -1].mean()),
        "rollout/length_mean_last": float(moving_average(curves["rollout/length_mean"], window)[:, -1].mean()),
        "policy/logprob_difference_max": float(curves["policy/logprob_difference_max"].max()),
    }


def summary_markdown(
    experiment: str,
    comparisons: Sequence[TaskComparison],
    overrides: Mapping[str, Any] | None = None,
    doubts: Sequence[str] = (),
) -> str:
    """One table over all tasks, and below it what it means."""
    rows = [
        f"| {comparison.label} | {metric_label(metric.metric)} | {_cells(metric)} |"
        for comparison in comparisons
        for metric in comparison.metrics
    ]
    level = f"{100 * comparisons[0].confidence:g}% interval"
    seeds = ", ".join(map(str, comparisons[0].seeds))
    lines = [
        f"# {experiment}",
        "",
        *([about_try(overrides), ""] if overrides else []),
        *(f"**Doubtful.** {doubt}\n" for doubt in doubts),
        f"{'Seed' if len(comparisons[0].seeds) == 1 else 'Seeds'}: {seeds}. Scores in percent, differences in percentage points, "
        f"each with its {level}.",
        "",
        "| task | metric | base | trained | trained - base |",
        "|---|---|---|---|---|",
        *rows,
        "",
        *(f"- {headline(comparison)} {interpretation(comparison)}" for comparison in comparisons),
    ]
    return "\n".join(lines) + "\n"


def _cells(metric: MetricComparison) -> str:
    scores = [f"{percent(estimate.value)} ({percent_interval(estimate)})" for estimate in (metric.base, metric.trained)]
    return " | ".join([*scores, f"{points(metric.difference.value)} ({points_interval(metric.difference)})"])
