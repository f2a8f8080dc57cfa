"""Scores of all evaluated policies of a run over its steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dagrpo.evaluation.outcomes import label_of
from dagrpo.evaluation.statistics import Estimate, Floats
from dagrpo.report import style
from dagrpo.report.comparison import estimate_of, values_of
from dagrpo.report.figures.parts import Hover, ReportFigure, legend, panels, series, step_axis
from dagrpo.report.format import metric_label, percent, percent_interval
from dagrpo.report.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScores:
    """One metric of one task for each evaluated policy, as shares between 0 and 1."""

    label: str  # of the task
    metric: str  # greedy, mean_at_4
    confidence: float
    policies: tuple[str, ...]  # base, the kept ones, trained
    steps: tuple[int, ...]  # after which each was the policy
    seeds: tuple[int, ...]
    estimates: tuple[Estimate, ...]  # over all seeds, as `policies`
    by_seed: Floats  # [seeds, policies]


def policy_scores(inputs: Inputs) -> list[PolicyScores]:
    """Return the greedy accuracy and the mean over samples of each task; [] if no kept policy was evaluated."""
    if len(inputs.policies) == 2:
        return []
    return [scores for task in inputs.tasks for scores in _of_task(inputs, task)]


def _of_task(inputs: Inputs, task: str) -> list[PolicyScores]:
    first, resampling = inputs.evaluations[task, "base", inputs.seeds[0]], inputs.resampling(task)
    values = [values_of(inputs, task, policy) for policy in inputs.policies]
    return [
        PolicyScores(
            label=label_of(task, oracle=first.summary["oracle"]),
            metric=metric,
            confidence=resampling.confidence,
            policies=tuple(inputs.policies),
            steps=tuple(inputs.policies.values()),
            seeds=inputs.seeds,
            estimates=tuple(estimate_of(metric, each[metric], resampling) for each in values),
            by_seed=np.stack([each[metric].mean(axis=1) for each in values], axis=1),
        )
        for metric in ("greedy", f"mean_at_{first.outcomes.samples}")
        if metric in values[0]
    ]


def scores_over_steps(inputs: Inputs, scores: Sequence[PolicyScores]) -> ReportFigure | None:
    """Draw a row for each task, a panel for each metric; None if only base and trained were evaluated."""
    if not scores:
        return None
    figure, grid = panels(len(scores), len({each.metric for each in scores}), 2.3)
    hovers = [hover for axes, each in zip(grid, scores, strict=True) for hover in _panel(axes, each)]
    if len(inputs.seeds) > 1:
        seeds = [(f"seed {seed}", series(row), "") for row, seed in enumerate(inputs.seeds)]
        legend(figure, [*seeds, ("mean", style.INK, "")])
    return ReportFigure(
        name="scores_over_steps",
        figure=figure,
        title="Score after each evaluated step",
        description="; ".join(_course(each) for each in scores) + ".",
        caption=_caption(scores[0]),
        hovers=hovers,
    )


def _panel(axes: Axes, scores: PolicyScores) -> list[Hover]:
    several = len(scores.seeds) > 1
    colour = style.INK if several else style.TRAINED
    for row, values in enumerate(scores.by_seed) if several else ():
        axes.plot(scores.steps, values, color=series(row), marker=".", linewidth=0.9, alpha=0.9)
    low, high = ([getattr(each, end) for each in scores.estimates] for end in ("low", "high"))
    axes.fill_between(scores.steps, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.plot(scores.steps, [each.value for each in scores.estimates], color=colour, marker=".", linewidth=1.8)
    axes.set_title(f"{scores.label}: {metric_label(scores.metric)}")
    lowest, highest = min(*low, scores.by_seed.min()), max(*high, scores.by_seed.max())
    room = max(0.05 * (highest - lowest), 0.005)
    axes.set_ylim(max(0.0, lowest - room), min(1.0, highest + room))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    step_axis(axes)
    middles = [(one + other) / 2 for one, other in zip(scores.steps, scores.steps[1:], strict=False)]
    edges = [float(scores.steps[0]), *middles, float(scores.steps[-1])]
    return [
        Hover(axes=axes, text=_at(scores, place), x=(edges[place], edges[place + 1]))
        for place in range(len(middles) + 1)
    ]


def _at(scores: PolicyScores, place: int) -> str:
    each = scores.estimates[place]
    text = (
        f"{scores.policies[place]}, after step {scores.steps[place]}: {percent(each.value)} ({percent_interval(each)})"
    )
    if len(scores.seeds) == 1:
        return text
    values = zip(scores.seeds, scores.by_seed[:, place], strict=True)
    return f"{text}; {', '.join(f'seed {seed} {percent(value)}' for seed, value in values)}"


def _course(scores: PolicyScores) -> str:
    pairs = zip(scores.steps, scores.estimates, strict=True)
    values = ", ".join(f"{percent(each.value)} after step {step}" for step, each in pairs)
    return f"{scores.label}, {metric_label(scores.metric)}: {values}"


def _caption(scores: PolicyScores) -> str:
    kept = scores.steps[1:-1]
    steps = f"step{'s' * (len(kept) > 1)} {', '.join(map(str, kept))}"
    lines = "One line per seed, and their mean" if len(scores.seeds) > 1 else "The score"
    over = "problems and seeds" if len(scores.seeds) > 1 else "problems"
    return (
        f"The base policy at step 0, what was kept after {steps}, and the trained policy at the last step, on the same "
        f"test problems with the same sampling seeds. {lines} with a {100 * scores.confidence:g}% interval over {over}. The highest "
        "point is chosen after looking at these problems: its score is too optimistic for the policy of that step."
    )
