"""Figures over training: learning curves, completion lengths, trainer against engine."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from dagrpo.report import style
from dagrpo.report.curves import Curves, moving_average
from dagrpo.report.figures.parts import (
    Drawn,
    curve,
    curve_in_words,
    legend,
    marker_of,
    paired_steps,
    percent_ticks,
    phase_legend,
    seed_legend,
    share_axis,
    step_axis,
)
from dagrpo.report.format import MINUS, percent
from dagrpo.report.rollouts import Phase
from dagrpo.report.tooltips import over_steps


def learning_curve(curves: Curves, window: int) -> Drawn:
    """Draw the reward over steps, and what explains it: entropy, and how many prompts still teach something."""
    figure = style.new_figure(4.6)
    axes: dict[str, Axes] = figure.subplot_mosaic([["reward", "reward"], ["entropy", "signal"]], height_ratios=(3, 2))
    reward = curves["reward/mean"]
    hovers = curve(axes["reward"], curves, reward, window)
    same = np.allclose(reward, curves["reward/accuracy"])
    axes["reward"].set_title("Mean reward (here the share of right answers)" if same else "Mean reward")
    hovers += curve(axes["entropy"], curves, curves["policy/entropy"], window)
    axes["entropy"].set_title("Entropy, nats per token")
    hovers += curve(axes["signal"], curves, 1 - curves["rollout/groups_without_spread"], window)
    axes["signal"].set_title("Prompts whose samples differ in reward")
    percent_ticks(axes["signal"])
    seed_legend(figure, curves)
    return Drawn(
        name="learning_curve",
        figure=figure,
        title="Learning curves",
        description=_course(curves, window),
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


def completion_length(curves: Curves, phases: tuple[Phase, Phase], window: int) -> Drawn:
    """Draw the completion length over steps, and its distribution at both ends of training."""
    figure = style.new_figure(2.7)
    left, right = figure.subplots(1, 2)
    hovers = curve(left, curves, curves["rollout/length_mean"], window)
    left.set_title("Mean length, tokens")
    left.set_ylim(0, 1.15 * curves["rollout/length_mean"].max())
    longest = max(int(phase.lengths.max()) for phase in phases)
    width = -(-longest // 24)
    edges = np.arange(0.5, longest + width, width)
    hovers += paired_steps(right, [phase.lengths.astype(np.float64) for phase in phases], edges)
    right.set_title("Length of a completion")
    right.set_xlabel("tokens")
    share_axis(right, "share of completions")
    phase_legend(figure, phases)
    means = [f"{phase.lengths.mean():.1f}" for phase in phases]
    cut = [percent(float(phase.truncated.mean())) for phase in phases]
    return Drawn(
        name="completion_length",
        figure=figure,
        title="Completion lengths",
        description=f"Mean length {means[0]} tokens in the first steps, {means[1]} in the last.",
        caption=f"Left: over training, drawn as the learning curves are. Right: first against last steps. Cut at the "
        f"token limit: {cut[0]} of the completions of the first of these steps, {cut[1]} of the last.",
        hovers=hovers,
    )


def logprob_difference(curves: Curves) -> Drawn:
    """Draw how well trainer and engine agree on logprobs of the same weights and tokens."""
    figure = style.new_figure(2.5)
    axes = figure.subplots()
    mean, most = curves["policy/logprob_difference_mean"], curves["policy/logprob_difference_max"]
    logarithmic = bool(mean.any())
    for values, colour in ((most, style.TRAINED), (mean, style.BASE)):
        for row in values:
            shown = np.where(row > 0, row, np.nan) if logarithmic else row
            axes.plot(curves.steps, shown, color=colour, marker=marker_of(curves), linewidth=1.0)
    if logarithmic:
        _whole_decades(axes, float(mean[mean > 0].min()), float(most.max()))
    axes.set_title(f"|trainer {MINUS} engine|, nats per token")
    step_axis(axes)

    def told(place: int) -> str:
        largest, average = (float(values[:, place].max()) for values in (most, mean))
        return f"step {curves.steps[place]:.0f}: largest {largest:.2e}, mean {average:.2e} nats per token"

    legend(figure, [("largest of the step", style.TRAINED, ""), ("mean of the step", style.BASE, "")])
    return Drawn(
        name="logprob_difference",
        figure=figure,
        title="Logprobs: trainer against engine",
        description=f"Largest difference of any step {most.max():.2e}, mean {mean.mean():.2e} nats per token.",
        caption="The trainer computes the logprob of each sampled token again. In float32 the two agree to about five "
        "decimals; more means stale weights, another precision, or another tokenization.",
        hovers=over_steps(axes, curves.steps, told),
    )


def _whole_decades(axes: Axes, least: float, most: float) -> None:
    """Scale the axis logarithmically with room for labels: whole powers of ten, at least two of them."""
    axes.set_yscale("log")
    axes.set_ylim(10.0 ** np.floor(np.log10(least)), 10.0 ** np.ceil(np.log10(most) + 1e-9))
    axes.yaxis.set_minor_formatter(NullFormatter())
