"""Page of how results were made: date, commit, machine, time, memory.

Written beside the logs, separate from the report: these facts differ on every machine and each time, while the report's bytes
do not depend on who makes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagrpo.core.metrics import METRICS, definition_of
from dagrpo.report import style
from dagrpo.report.executions import circumstances, duration, executions
from dagrpo.report.figures.parts import ReportFigure, legend
from dagrpo.report.html import render_html
from dagrpo.report.svg import Hover
from dagrpo.utils.files import remove, write_text
from dagrpo.utils.run_info import SECONDS, Account, read_times, step_seconds

FILE = "times.html"
COLOURS = (*style.SERIES, style.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTimes:
    """The times of one seed's training."""

    seed: str
    steps: Sequence[dict[str, float]]  # of each step, metrics of the group `timing/`

    def mean(self, name: str) -> float | None:
        """Average a time over the steps that have it: the last part of a step before an interruption is not known."""
        values = [step[name] for step in self.steps if name in step]
        return sum(values) / len(values) if values else None

    @property
    def seconds(self) -> float:
        """Seconds of all steps together."""
        return sum(map(step_seconds, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row of the page's table: a part of a step, over all seeds."""

    label: str
    meaning: str
    seconds: float  # of a step, mean over steps and seeds
    share: float  # of the step
    longest: float


def times_of_seeds(metrics: Sequence[Path], logs: Path) -> list[SeedTimes]:
    """Read the times of each metrics.parquet from the experiment's folder of logs; [] if another machine trained."""
    times = [(path.parent.name, read_times(logs / path.parent.name, path)) for path in metrics]
    return [SeedTimes(seed=name.removeprefix("seed_"), steps=steps) for name, steps in sorted(times) if steps]


def parts_of(times: Sequence[SeedTimes]) -> list[str]:
    """List the parts of a step in order of execution; parts without a known order come last."""
    names = {name for seed in times for step in seed.steps for name in step if name.endswith(SECONDS)}
    known = [metric.name for metric in METRICS if metric.name in names]
    return [*known, *sorted(names.difference(known))]


def label_of(part: str) -> str:
    """Format a part's name: timing/weight_sync_seconds -> weight sync"""
    return part.partition("/")[2].removesuffix(SECONDS).replace("_", " ")


def write_times_page(
    experiment: str, times: Sequence[SeedTimes], logs: Path, accounts: Mapping[Path, Account] | None = None
) -> Path | None:
    """Write the page and return its path; if nothing is known, remove an earlier page and return None.

    `accounts`: each execution's account, by the provenance.json that it wrote.
    """
    path = logs / FILE
    if not times and not accounts:
        remove(path)
        return None
    names = parts_of(times)
    html = render_html(
        Path(__file__).with_name("times.html.j2"),
        experiment=experiment,
        figure=_figure(times, names) if times else None,
        parts=_parts(times, names),
        facts=facts(times),
        made=circumstances(accounts or {}),
        executions=executions(accounts or {}),
    )
    write_text(path, html)
    return path


def _parts(times: Sequence[SeedTimes], names: Sequence[str]) -> list[Part]:
    steps = [step for each in times for step in each.steps]
    total = sum(map(step_seconds, steps))
    rows = []
    for name in names:
        values = [step[name] for step in steps if name in step]
        definition = definition_of(name)
        rows.append(
            Part(
                label=label_of(name),
                meaning=definition.meaning if definition else "",
                seconds=sum(values) / len(values),
                share=sum(values) / total if total else 0.0,
                longest=max(values),
            )
        )
    return rows


def facts(times: Sequence[SeedTimes]) -> list[tuple[str, str]]:
    """Return the known facts of each run overall, means over seeds; MFU only if the device's peak is known."""
    if not times:
        return []
    facts = {
        "Steps": f"{sum(len(each.steps) for each in times) / len(times):,.0f}",
        "Time in steps": duration(sum(each.seconds for each in times) / len(times)),
        "Tokens per second": _mean(times, "timing/tokens_per_second", "{:,.0f}"),
        "MFU of the update": _mean(times, "timing/update_mfu", "{:.1%}"),
        "MFU of the rollouts": _mean(times, "timing/rollout_mfu", "{:.1%}"),
    }
    return [(name, value) for name, value in facts.items() if value]


def _mean(times: Sequence[SeedTimes], name: str, form: str) -> str:
    means = [mean for each in times if (mean := each.mean(name)) is not None]
    return form.format(sum(means) / len(means)) if means else ""


def _figure(times: Sequence[SeedTimes], names: Sequence[str]) -> ReportFigure:
    labels = [label_of(name) for name in names]
    return step_times(labels, {each.seed: [each.mean(name) or 0.0 for name in names] for each in times})


def step_times(parts: Sequence[str], means: Mapping[str, Sequence[float]]) -> ReportFigure:
    """Draw a stacked bar for each seed. means: by seed, the seconds of each part of a step."""
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(parts))]
    hovers: list[Hover] = []
    with style.house_style():
        figure = style.new_figure(0.9 + 0.32 * len(means))
        axes = figure.subplots()
        for row, seconds in enumerate(means.values()):
            start = 0.0
            for width, colour in zip(seconds, colours, strict=True):
                axes.barh(row, width, 0.6, left=start, color=colour)
                text = f"{parts[len(hovers) % len(parts)]}: {width:.3g} s"
                hovers.append(Hover(axes=axes, text=text, x=(start, start + width), y=(row - 0.3, row + 0.3)))
                start += width
        axes.set_yticks(range(len(means)), [f"seed {seed}" for seed in means])
        axes.set_ylim(len(means) - 0.5, -0.5)
        axes.set_xlabel("seconds of a step")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        legend(figure, [(part, colour, "s") for part, colour in zip(parts, colours, strict=True)])
    descriptions = [
        f"seed {seed}: " + ", ".join(f"{part} {value:.3g} s" for part, value in zip(parts, seconds, strict=True))
        for seed, seconds in means.items()
    ]
    return ReportFigure(
        name="step_times",
        figure=figure,
        title="Parts of a step",
        description="; ".join(descriptions) + ".",
        caption="Means over the steps of each seed.",
        hovers=hovers,
    )
