"""Figures of training: learning curves, rewards, lengths, trainer against engine."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from dagrpo.core.experiment import task_metric, tasks_among
from dagrpo.core.metrics import METRICS
from dagrpo.report import style
from dagrpo.report.curves import Curves, moving_average
from dagrpo.report.figures.parts import (
    Hover,
    ReportFigure,
    curve_in_words,
    empty_figure,
    legend,
    marker_of,
    metric_curve,
    number,
    over_steps,
    paired_bars,
    paired_steps,
    panels,
    percent_ticks,
    phase_legend,
    recorded_of,
    seed_legend,
    series,
    share_axis,
    step_axis,
)
from dagrpo.report.format import MINUS, percent
from dagrpo.report.rollouts import Phases

LINES = (style.TRAINED, style.BASE, *style.SERIES[2:])  # colours of the lines in one panel
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NO_ROLLOUTS = "This trainer leaves no table of rollouts."
MOST_BARS = 9  # distinct rewards that still get a bar each


def learning_curve(curves: Curves, window: int) -> ReportFigure:
    """Draw the reward over steps in a wide panel, and below it the metrics that explain it, two per row."""
    reward, accuracy = curves["reward/mean"], curves.values.get("reward/accuracy")
    first, *others = recorded_of("learning_curve", curves)
    rows = [[metric.name for metric in others[start : start + 2]] for start in range(0, len(others), 2)]
    mosaic = [[first.name] * 2, *(row * 2 if len(row) == 1 else row for row in rows)]
    figure = style.new_figure(2.76 + 1.84 * len(rows))
    axes: dict[str, Axes] = figure.subplot_mosaic(mosaic, height_ratios=(3, *(2 for _ in rows)))
    hovers = [hover for metric in (first, *others) for hover in metric_curve(axes[metric.name], curves, metric, window)]
    if accuracy is not None and np.allclose(reward, accuracy):
        axes["reward/mean"].set_title("Mean reward (here the share of correct answers)")
    seed_legend(figure, curves)
    return ReportFigure(
        name="learning_curve",
        figure=figure,
        title="Learning curves",
        description=f"{_course(curves, window)}{_early_ends(curves)}",
        caption=f"{curve_in_words(curves, window)} A prompt whose samples all earn the same reward has advantage 0 and "
        "teaches nothing.",
        hovers=hovers,
    )


def _course(curves: Curves, window: int) -> str:
    smooth = moving_average(curves["reward/mean"], window)
    first = smooth[:, min(window, smooth.shape[1]) - 1].mean()
    return (
        f"Mean reward of the first {min(window, smooth.shape[1])} of {len(curves.steps)} steps {first:.3f}, "
        f"of the last {smooth[:, -1].mean():.3f}."
    )


def _early_ends(curves: Curves) -> str:
    ends = zip(curves.seeds, curves.ends, strict=True)
    early = ", ".join(f"seed {seed} after step {end}" for seed, end in ends if end < len(curves.steps))
    return f" training.patience ended {early}; lines go on with its last average." if early else ""


def completion_length(curves: Curves, phases: Phases | None, window: int) -> ReportFigure:
    """Draw the completion length over steps, and its distribution at both ends of training."""
    title, metrics = "Completion lengths", recorded_of("completion_length", curves)
    if phases is None:
        return empty_figure("completion_length", title, NO_ROLLOUTS)
    figure = style.new_figure(2.7)
    *panels, right = figure.subplots(1, len(metrics) + 1)
    hovers = []
    for axes, metric in zip(panels, metrics, strict=True):
        hovers += metric_curve(axes, curves, metric, window)
        axes.set_ylim(0, 1.15 * np.nanmax(curves[metric.name]))
    longest = max(int(phase.lengths.max()) for phase in phases)
    width = -(-longest // 24)
    edges = np.arange(0.5, longest + width, width)
    hovers += paired_steps(right, [phase.lengths.astype(np.float64) for phase in phases], edges)
    right.set_title("Length of a completion")
    right.set_xlabel("tokens")
    share_axis(right, "share of completions")
    phase_legend(figure, phases)
    means = [f"{phase.lengths.mean():.1f}" for phase in phases]
    truncated = [percent(float(phase.truncated.mean())) for phase in phases]
    return ReportFigure(
        name="completion_length",
        figure=figure,
        title=title,
        description=f"Mean length {means[0]} tokens in the first steps, {means[1]} in the last.",
        caption="Left: over the training steps, drawn as in the learning curves. Right: first against last steps. Truncated at the "
        f"token limit: {truncated[0]} of the completions of the first steps, {truncated[1]} of the last.",
        hovers=hovers,
    )


def logprob_difference(curves: Curves) -> ReportFigure:
    """Draw how well trainer and engine agree on the logprobs of the same weights and tokens."""
    title, metrics = "Logprobs: trainer against engine", recorded_of("logprob_difference", curves)
    if not metrics:
        return empty_figure("logprob_difference", title, "This trainer compares no logprobs with the engine's.")
    figure = style.new_figure(2.5)
    axes = figure.subplots()
    lines = {metric.label: curves[metric.name] for metric in metrics}
    colours = dict(zip(lines, LINES, strict=False))
    positive = np.concatenate([values[values > 0] for values in lines.values()])
    for label, values in lines.items():
        for row in values:
            visible = np.where(row > 0, row, np.nan) if len(positive) else row
            axes.plot(curves.steps, visible, color=colours[label], marker=marker_of(curves), linewidth=1.0)
    if len(positive):
        _whole_decades(axes, float(positive.min()), float(positive.max()))
    axes.set_title(f"|trainer {MINUS} engine|, nats per token")
    step_axis(axes)

    def values_at(index: int) -> str:
        largest = ", ".join(f"{label.lower()} {np.nanmax(values[:, index]):.2e}" for label, values in lines.items())
        return f"step {curves.steps[index]:.0f}: {largest}"

    legend(figure, [(label, colour, "") for label, colour in colours.items()])
    return ReportFigure(
        name="logprob_difference",
        figure=figure,
        title=title,
        description="; ".join(
            f"{label}: {np.nanmax(values):.2e} at most, {np.nanmean(values):.2e} on average"
            for label, values in lines.items()
        )
        + ".",
        caption="The trainer recomputes the logprob of each sampled token. In float32 the two agree to about five decimals; a "
        "larger difference means stale weights, another precision or another tokenization.",
        hovers=over_steps(axes, curves.steps, values_at),
    )


def _whole_decades(axes: Axes, least: float, most: float) -> None:
    """Scale the axis logarithmically with room for labels: whole powers of ten, at least two of them."""
    axes.set_yscale("log")
    axes.set_ylim(10.0 ** np.floor(np.log10(least)), 10.0 ** np.ceil(np.log10(most) + 1e-9))
    axes.yaxis.set_major_formatter(lambda value, _: "10" + str(round(np.log10(value))).translate(SUPERSCRIPTS))
    axes.yaxis.set_minor_formatter(NullFormatter())


def reward_distribution(phases: Phases | None) -> ReportFigure:
    """Draw the rewards, and the number of right answers per prompt, of the first and the last steps."""
    title = "Rewards: first against last steps"
    if phases is None:
        return empty_figure("reward_distribution", title, NO_ROLLOUTS)
    figure = style.new_figure(2.7)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    hovers = _rewards(left, phases)
    left.set_title("Reward of a completion")
    share_axis(left, "share of completions")
    size = max(phase.group_size for phase in phases)
    counts = [np.bincount(phase.right_per_group, minlength=size + 1) / len(phase.right_per_group) for phase in phases]
    hovers += paired_bars(right, [str(number) for number in range(size + 1)], counts)
    right.set_title(f"Correct answers among the {size} samples of a prompt")
    share_axis(right, "share of prompts")
    phase_legend(figure, phases)
    means = [f"{phase.rewards.mean():.3f}" for phase in phases]
    none, every = ([percent(float(count[end])) for count in counts] for end in (0, -1))
    return ReportFigure(
        name="reward_distribution",
        figure=figure,
        title=title,
        description=f"Mean reward {means[0]} in the first steps, {means[1]} in the last. Prompts without a correct "
        f"answer: {none[0]}, then {none[1]}; with correct ones only: {every[0]}, then {every[1]}.",
        caption="Left: reward of a completion. Right: number of correct samples of a prompt; a prompt at either end of the scale "
        "teaches nothing.",
        hovers=hovers,
    )


def _rewards(axes: Axes, phases: Phases) -> list[Hover]:
    """Draw a bar per level if rewards are few and discrete, or a histogram if shaping makes them continuous."""
    levels = np.unique(np.concatenate([phase.rewards for phase in phases]))
    if len(levels) <= MOST_BARS:
        shares = [np.array([(phase.rewards == level).mean() for level in levels]) for phase in phases]
        return paired_bars(axes, [f"{level:g}" for level in levels], shares)
    return paired_steps(axes, [phase.rewards for phase in phases], np.linspace(levels[0], levels[-1], 21))


def by_task(curves: Curves, window: int) -> ReportFigure | None:
    """Draw reward, length, entropy and prompts without signal, a line for each task of a mixture; None for a single task."""
    tasks = tasks_among(curves.values)
    metrics = [metric for metric in METRICS if metric.figure == "by_task"]
    recorded = [
        {task: name for task in tasks if (name := each.name.replace("<task>", task)) in curves.values}
        for each in metrics
    ]
    drawn = [(metric, names) for metric, names in zip(metrics, recorded, strict=True) if names]
    if not drawn:
        return None
    figure, grid = panels(len(drawn), 2, 1.9)
    hovers: list[Hover] = []
    for axes, (metric, names) in zip(grid, drawn, strict=True):
        hovers += _lines(axes, curves, {task: (names[task], series(tasks.index(task))) for task in names}, window)
        axes.set_title(metric.title)
        if metric.is_share:
            percent_ticks(axes)
    legend(figure, [(task, series(row), "") for row, task in enumerate(tasks)])
    several = " The mean over seeds is drawn." if len(curves.seeds) > 1 else ""
    return ReportFigure(
        name="by_task",
        figure=figure,
        title="The tasks of the mixture",
        description="; ".join(_last_of_task(curves, task) for task in tasks) + ".",
        caption=f"Each task's own trajectories; moving average over {window} steps.{several} A prompt whose samples all earn the same "
        "reward teaches nothing: by so much less has its task of the gradient than of the prompts.",
        hovers=hovers,
    )


def _lines(axes: Axes, curves: Curves, lines: Mapping[str, tuple[str, str]], window: int) -> list[Hover]:
    """Draw a smoothed line for each task, from a metric's name and a colour. Returns hovers."""
    smooth = {task: moving_average(curves[name], window).mean(axis=0) for task, (name, _) in lines.items()}
    for task, (_, colour) in lines.items():
        axes.plot(curves.steps, smooth[task], color=colour, marker=marker_of(curves))
    if all((np.nan_to_num(values) >= 0).all() for values in smooth.values()):
        axes.set_ylim(bottom=0)
    step_axis(axes)

    def values_at(place: int) -> str:
        of_tasks = ", ".join(f"{task} {number(values[place])}" for task, values in smooth.items())
        return f"step {curves.steps[place]:.0f}: {of_tasks}"

    return over_steps(axes, curves.steps, values_at)


def _last_of_task(curves: Curves, task: str) -> str:
    """Return what the text alternative says of a task: its last figures, means over seeds."""
    labels = {"reward_mean": "reward", "tokens_mean": "tokens", "groups": "prompts", "epoch": "epochs"}
    names = {label: task_metric(task, figure) for figure, label in labels.items()}
    last = (
        f"{label} {number(moving_average(curves[name], 1)[:, -1].mean())}"
        for label, name in names.items()
        if name in curves.values
    )
    return f"{task} in the last step: {', '.join(last)}"
