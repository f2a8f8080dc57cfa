"""Turns, calls and users in the report: tables and selected attempts.

A fixed rule selects the attempts. Left out for an experiment whose attempts are single turns without calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dagrpo.core.trajectory import GREEDY
from dagrpo.report import format, style
from dagrpo.report.attempt import Attempt, attempt_of, attempts_of
from dagrpo.report.curves import Curves
from dagrpo.report.figures.parts import (
    Hover,
    ReportFigure,
    curve_in_words,
    legend,
    metric_curve,
    panels,
    recorded_of,
    seed_legend,
)
from dagrpo.report.inputs import VARIANTS, Inputs, Variant
from dagrpo.report.rollouts import step_rollouts, steps_of
from dagrpo.report.samples import best_and_worst
from dagrpo.report.splits import TRAINING
from dagrpo.rollout.table import has_conversations, with_texts, without_discarded

NOTHING: Mapping[str, float] = {"turns": 1.0, "calls": 0.0, "called": 0.0, "excluded": 0.0}  # of a single turn
NEEDED = ("task", "question", "completion", "messages", "calls", "turns")
BAR = 0.36


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Frequencies of the outcomes in a task, as shares that add up to 1; means over seeds."""

    task: str
    statuses: Mapping[Variant, Mapping[str, float]]  # of calls
    ends: Mapping[Variant, Mapping[str, float]]  # of attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Best and worst attempts of the first seed, to read."""

    title: str
    best: Sequence[Attempt]
    worst: Sequence[Attempt]
    pictures: Sequence[tuple[str, ...]]  # of the problem of each, first of the best, then of the worst, as data URIs


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The report's part about conversations."""

    rows: Mapping[str, Sequence[tuple[str, ...]]]  # texts of each policy by task, those without conversations too
    shares: Sequence[Shares]  # of the tasks that have any
    attempts: Sequence[Selection]


def conversations(inputs: Inputs, count: int) -> Conversations | None:
    """Collect everything on conversations, with `count` best and worst attempts of each kind; None without conversations."""
    every = [(policy, seed) for policy in VARIANTS for seed in inputs.seeds]
    talking = [task for task in inputs.tasks if any("conversations" in inputs.summary(task, *each) for each in every)]
    trained = _of_training(inputs, count)
    if not talking and trained is None:
        return None
    return Conversations(
        rows={task: [_row(inputs, task, policy) for policy in VARIANTS] for task in inputs.tasks},
        shares=[_shares(inputs, task) for task in talking],
        attempts=[*([trained] if trained else []), *(_of_evaluation(inputs, task, count) for task in talking)],
    )


def _row(inputs: Inputs, task: str, policy: Variant) -> tuple[str, ...]:
    """Return texts: policy, accuracy, turns, calls, share with a call, share of the calls that went well, share of excluded ones."""
    summaries = [inputs.summary(task, policy, seed) for seed in inputs.seeds]
    sections = [each.get("conversations", {}) for each in summaries]
    mean = {
        name: fmean([each.get(name, {}).get("greedy", default) for each in sections])
        for name, default in NOTHING.items()
    }
    statuses = [each["call_statuses"]["greedy"] for each in sections if each and each["call_statuses"]["greedy"]]
    fine = [each.get("ok", 0.0) for each in statuses]
    return (
        policy,
        format.percent(fmean([each["greedy"]["value"] for each in summaries])),
        f"{mean['turns']:.2f}",
        f"{mean['calls']:.2f}",
        format.percent(mean["called"]),
        format.percent(fmean(fine)) if fine else format.EN_DASH,
        format.percent(mean["excluded"]),
    )


def _shares(inputs: Inputs, task: str) -> Shares:
    def of(name: str, policy: Variant) -> dict[str, float]:
        shares = [inputs.summary(task, policy, seed).get("conversations", {}).get(name, {}) for seed in inputs.seeds]
        known = [each["greedy"] for each in shares if each.get("greedy")]
        return {
            key: fmean([each.get(key, 0.0) for each in known])
            for key in sorted({key for each in known for key in each})
        }

    return Shares(
        task=task,
        statuses={policy: of("call_statuses", policy) for policy in VARIANTS},
        ends={policy: of("stop_reasons", policy) for policy in VARIANTS},
    )


def _of_training(inputs: Inputs, count: int) -> Selection | None:
    step = steps_of(inputs, inputs.seeds[0])
    if not step:
        return None
    file = step_rollouts(inputs, inputs.seeds[0], step)
    if any(name not in file.columns for name in NEEDED):
        return None
    table = with_texts(without_discarded(file.short))
    if not has_conversations(table):
        return None
    best, worst = (
        [attempt_of(row) for row in file.rows_of(table, positions)] for positions in best_and_worst(table, count, count)
    )
    return _selection(f"In training, step {step}", best, worst, partial(inputs.pictures.of, TRAINING))


def _of_evaluation(inputs: Inputs, task: str, count: int) -> Selection:
    scores = inputs.evaluations[task, "trained", inputs.seeds[0]].scores
    greedy = scores.filter(pa.array([index == GREEDY for index in scores["sample_index"].to_pylist()]))
    best, worst = (attempts_of(greedy, positions) for positions in best_and_worst(greedy, count, count))
    return _selection(f"Greedy on {task}, trained policy", best, worst, partial(inputs.pictures.of, task))


def _selection(
    title: str, best: Sequence[Attempt], worst: Sequence[Attempt], pictures: Callable[[int], tuple[str, ...]]
) -> Selection:
    images = [pictures(each.read.problem_index) for each in (*best, *worst)]
    return Selection(title=title, best=best, worst=worst, pictures=images)


def turns_and_calls(curves: Curves, window: int) -> ReportFigure | None:
    """Draw turns and calls over steps; None if training recorded none."""
    metrics = recorded_of("turns_and_calls", curves)
    if not metrics:
        return None
    figure, grid = panels(len(metrics), 2, 1.9)
    hovers: list[Hover] = []
    for axes, metric in zip(grid, metrics, strict=True):
        hovers += metric_curve(axes, curves, metric, window)
        axes.set_ylim(bottom=0)
        if metric.is_share:
            axes.set_ylim(0, 1.04)
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    seed_legend(figure, curves)
    last = ", ".join(f"{metric.label.lower()} {curves[metric.name][:, -1].mean():.2f}" for metric in metrics)
    return ReportFigure(
        name="turns_and_calls",
        figure=figure,
        title="Turns and calls in training",
        description=f"In the last step: {last}.",
        caption=f"{curve_in_words(curves, window)} Means over the trajectories of the update.",
        hovers=hovers,
    )


def call_shares(shares: Sequence[Shares]) -> ReportFigure | None:
    """Draw two panels per task, outcomes of calls and of trajectories; None if no task has any."""
    if not shares:
        return None
    heights = [max(len(_names(each.statuses)), len(_names(each.ends)), 2) for each in shares]
    figure = style.new_figure(0.3 * sum(heights) + 0.55 * len(shares) + 0.45)
    grid = figure.subplots(len(shares), 2, squeeze=False, height_ratios=heights)
    hovers: list[Hover] = []
    for row, each in zip(grid, shares, strict=True):
        of_task = f", {each.task}" if len(shares) > 1 else ""
        hovers += _bars(row[0], f"Calls by status{of_task}", each.statuses)
        hovers += _bars(row[1], f"Trajectories by end{of_task}", each.ends)
    legend(figure, [("base", style.BASE, "s"), ("trained", style.TRAINED, "s")])
    return ReportFigure(
        name="call_shares",
        figure=figure,
        title="Outcomes of calls and trajectories",
        description="; ".join(_in_words(each) for each in shares) + ".",
        caption="Greedy trajectories. Left: shares of all calls. Right: shares of all trajectories.",
        hovers=hovers,
    )


def _names(by_policy: Mapping[Variant, Mapping[str, float]]) -> list[str]:
    sums = {
        name: sum(shares.get(name, 0.0) for shares in by_policy.values())
        for each in by_policy.values()
        for name in each
    }
    return sorted(sums, key=lambda name: (-sums[name], name))


def _bars(axes: Axes, title: str, by_policy: Mapping[Variant, Mapping[str, float]]) -> list[Hover]:
    names = _names(by_policy)
    positions = np.arange(len(names))
    for policy, offset, colour in zip(VARIANTS, (-0.2, 0.2), (style.BASE, style.TRAINED), strict=True):
        axes.barh(positions + offset, [by_policy[policy].get(name, 0.0) for name in names], BAR, color=colour)
    axes.set_title(title)
    axes.set_yticks(positions, names)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    if not names:
        axes.text(0.5, 0.5, "no calls", transform=axes.transAxes, ha="center", va="center")
    hovers = []
    for place, name in enumerate(names):
        both = ", ".join(f"{policy} {by_policy[policy].get(name, 0.0):.1%}" for policy in VARIANTS)
        hovers.append(Hover(axes=axes, text=f"{name}: {both}", y=(place - 0.5, place + 0.5)))
    return hovers


def _in_words(each: Shares) -> str:
    statuses = [
        f"{policy} {share:.2f}" for policy in VARIANTS if (share := each.statuses[policy].get("ok")) is not None
    ]
    return (
        f"{each.task}: share of successful calls {', '.join(statuses)}"
        if statuses
        else f"{each.task}: no successful calls"
    )
