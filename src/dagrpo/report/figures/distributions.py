"""Figure: rewards in the first steps of training against the last."""

import numpy as np
from matplotlib.axes import Axes

from dagrpo.report import style
from dagrpo.report.figures.parts import Drawn, paired_bars, paired_steps, phase_legend, share_axis
from dagrpo.report.format import percent
from dagrpo.report.rollouts import Phase
from dagrpo.report.tooltips import Hover

MOST_BARS = 9  # distinct rewards that still get a bar each


def reward_distribution(phases: tuple[Phase, Phase]) -> Drawn:
    """Draw the rewards, and the number of right answers per prompt, of the first and the last steps."""
    figure = style.new_figure(2.7)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    hovers = _rewards(left, phases)
    left.set_title("Reward of a completion")
    share_axis(left, "share of completions")
    size = max(phase.group_size for phase in phases)
    counts = [np.bincount(phase.right_per_group, minlength=size + 1) / len(phase.right_per_group) for phase in phases]
    hovers += paired_bars(right, [str(number) for number in range(size + 1)], counts)
    right.set_title(f"Right answers among the {size} samples of a prompt")
    share_axis(right, "share of prompts")
    phase_legend(figure, phases)
    means = [f"{phase.rewards.mean():.3f}" for phase in phases]
    none, every = ([percent(float(count[end])) for count in counts] for end in (0, -1))
    return Drawn(
        name="reward_distribution",
        figure=figure,
        title="Rewards, first against last steps",
        description=f"Mean reward {means[0]} in the first steps, {means[1]} in the last. Prompts without a right "
        f"answer: {none[0]}, then {none[1]}; with only right ones: {every[0]}, then {every[1]}.",
        caption="Left: what a completion earned. Right: how many samples of one prompt were right; at either end of the "
        "scale a prompt teaches nothing.",
        hovers=hovers,
    )


def _rewards(axes: Axes, phases: tuple[Phase, Phase]) -> list[Hover]:
    """Draw a bar per level if rewards are few and discrete, or a histogram if shaping makes them continuous."""
    levels = np.unique(np.concatenate([phase.rewards for phase in phases]))
    if len(levels) <= MOST_BARS:
        shares = [np.array([(phase.rewards == level).mean() for level in levels]) for phase in phases]
        return paired_bars(axes, [f"{level:g}" for level in levels], shares)
    return paired_steps(axes, [phase.rewards for phase in phases], np.linspace(levels[0], levels[-1], 21))
