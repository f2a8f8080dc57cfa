"""The report's numbers for other programs: metrics.json, scores.csv, summary.md.

The JSON and CSV files are for DVC; summary.md is printed at the end of a run.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from dagrpo.evaluation.choice import sentence
from dagrpo.evaluation.config import CHOSEN
from dagrpo.report.comparison import TaskComparison
from dagrpo.report.curves import Curves, moving_average
from dagrpo.report.figures.policies import PolicyScores
from dagrpo.report.format import (
    headline,
    interpretation,
    metric_label,
    override_notice,
    percent,
    percent_interval,
    points,
    points_interval,
)

PLACES = 4  # decimals: more would show as noise in `dvc metrics diff`
Numbers = dict[str, dict[str, float | str] | float]
SCORE_COLUMNS = ("task", "metric", "policy", "score", "low", "high")


def metrics_json(
    comparisons: Sequence[TaskComparison], curves: Curves, window: int, chosen: Sequence[TaskComparison] = ()
) -> Numbers:
    """Return the columns of `dvc exp show`: each task's greedy accuracy, and the mean reward of the last `window` steps.

    Only a few, since columns stand side by side; scores.json, curves.csv and MLflow have all the others.
    """
    reward = float(moving_average(curves["reward/mean"], window)[:, -1].mean())
    of_chosen = {each.label: {CHOSEN: round(each.greedy.second.value, PLACES)} for each in chosen}
    return {each.label: {**_greedy_numbers(each), **of_chosen.get(each.label, {})} for each in comparisons} | {
        "mean reward": round(reward, PLACES)  # with a space, which no task has in its name
    }


def _greedy_numbers(comparison: TaskComparison) -> dict[str, float | str]:
    """Return shares from 0 to 1; the interval is that of the difference, trained minus base."""
    greedy = comparison.greedy
    return {
        "base": round(greedy.first.value, PLACES),
        "trained": round(greedy.second.value, PLACES),
        "difference": round(greedy.difference.value, PLACES),
        "interval": f"{greedy.difference.low:+.3f} to {greedy.difference.high:+.3f}",
    }


def scores_csv(
    comparisons: Sequence[TaskComparison],
    of_policies: Sequence[PolicyScores] = (),
    chosen: Sequence[TaskComparison] = (),
) -> str:
    """Return the bars that DVC plots: a row for each metric of each policy on each task, as shares from 0 to 1 with intervals.

    Of kept policies the metrics that `of_policies` has.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SCORE_COLUMNS)
    kept = {
        (each.label, each.metric): (*zip(each.policies, each.estimates, strict=True),)[1:-1] for each in of_policies
    }
    of_chosen = {(each.label, metric.name): metric.second for each in chosen for metric in each.metrics}
    for comparison in comparisons:
        for metric in comparison.metrics:
            last = [(CHOSEN, of_chosen[comparison.label, metric.name])] if chosen else []
            between = kept.get((comparison.label, metric.name), ())
            for policy, estimate in (("base", metric.first), *between, ("trained", metric.second), *last):
                numbers = (round(number, PLACES) for number in (estimate.value, estimate.low, estimate.high))
                writer.writerow([comparison.label, metric_label(metric.name), policy, *numbers])
    return text.getvalue()


def summary_markdown(
    experiment: str,
    comparisons: Sequence[TaskComparison],
    overrides: Mapping[str, Any] | None = None,
    doubts: Sequence[str] = (),
) -> str:
    """Return one table over all tasks, followed by its interpretation."""
    level = f"{100 * comparisons[0].confidence:g}% interval"
    seeds = ", ".join(map(str, comparisons[0].seeds))
    lines = [
        f"# {experiment}",
        "",
        *([override_notice(overrides), ""] if overrides else []),
        *(f"**Doubtful.** {doubt}\n" for doubt in doubts),
        f"{'Seed' if len(comparisons[0].seeds) == 1 else 'Seeds'}: {seeds}. Scores in percent, differences in percentage points, "
        f"each with its {level}.",
        "",
        *_table(comparisons, "trained"),
        "",
        *(f"- {headline(comparison)} {interpretation(comparison)}" for comparison in comparisons),
    ]
    return "\n".join(lines) + "\n"


def chosen_markdown(chosen: Sequence[TaskComparison], choices: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the table of the chosen policy, and how each seed has chosen; "" if none was chosen."""
    if not chosen:
        return ""
    lines = [
        "",
        *_table(chosen, CHOSEN),
        "",
        *(f"- Seed {seed}: {sentence(choice)}" for seed, choice in choices.items()),
    ]
    return "\n".join(lines) + "\n"


def _table(comparisons: Sequence[TaskComparison], policy: str) -> list[str]:
    rows = []
    for comparison in comparisons:
        for metric in comparison.metrics:
            scores = [f"{percent(each.value)} ({percent_interval(each)})" for each in (metric.first, metric.second)]
            change = f"{points(metric.difference.value)} ({points_interval(metric.difference)})"
            rows.append(f"| {' | '.join([comparison.label, metric_label(metric.name), *scores, change])} |")
    return [f"| task | metric | base | {policy} | {policy} - base |", "|---|---|---|---|---|", *rows]
