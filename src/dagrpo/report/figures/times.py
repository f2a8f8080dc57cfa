"""Figure: time spent in each part of a step."""

from collections.abc import Mapping, Sequence

from dagrpo.report import style
from dagrpo.report.figures.parts import Drawn, legend
from dagrpo.report.tooltips import Hover

COLOURS = (*style.SERIES, style.INK)


def step_times(parts: Sequence[str], means: Mapping[str, Sequence[float]]) -> Drawn:
    """Draw a stacked bar for each seed. means: by seed, the seconds of each part of a step."""
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(parts))]
    hovers: list[Hover] = []
    with style.house_style():
        figure = style.new_figure(0.9 + 0.32 * len(means))
        axes = figure.subplots()
        for row, seconds in enumerate(means.values()):
            left = 0.0
            for width, colour in zip(seconds, colours, strict=True):
                axes.barh(row, width, 0.6, left=left, color=colour)
                told = f"{parts[len(hovers) % len(parts)]}: {width:.3g} s"
                hovers.append(Hover(axes=axes, text=told, x=(left, left + width), y=(row - 0.3, row + 0.3)))
                left += width
        axes.set_yticks(range(len(means)), [f"seed {seed}" for seed in means])
        axes.set_ylim(len(means) - 0.5, -0.5)
        axes.set_xlabel("seconds of a step")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        legend(figure, [(part, colour, "s") for part, colour in zip(parts, colours, strict=True)])
    said = [
        f"seed {seed}: " + ", ".join(f"{part} {value:.3g} s" for part, value in zip(parts, seconds, strict=True))
        for seed, seconds in means.items()
    ]
    return Drawn(
        name="step_times",
        figure=figure,
        title="Where the time of a step goes",
        description="; ".join(said) + ".",
        caption="Means over the steps of each seed.",
        hovers=hovers,
    )
