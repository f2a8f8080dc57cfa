"""How the results were made here: when, from which commit, on which machine, in which time and memory. A page beside the logs.

Not in the report, whose bytes are the same whoever makes it: all this is another's on every machine, and each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dagrpo.execution.account import Account
from dagrpo.files import remove, write_text
from dagrpo.metrics import definition_of
from dagrpo.metrics.timing import PARTS
from dagrpo.report.figures.times import step_times
from dagrpo.report.inline_svg import inline
from dagrpo.report.made import duration, executions, made_with
from dagrpo.times import SECONDS, read_times, step_seconds
from dagrpo.visible import visible

TEMPLATE = "times.html.j2"
FILE = "times.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTimes:
    """The times of one seed's training."""

    seed: str
    steps: Sequence[dict[str, float]]  # of each step, metrics of the group `timing/`

    def mean(self, name: str) -> float | None:
        """Over the steps that have it: the last part of a step before an interruption is not known."""
        values = [step[name] for step in self.steps if name in step]
        return sum(values) / len(values) if values else None

    @property
    def seconds(self) -> float:
        """Of all steps."""
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
    """Those of each metrics.parquet that stand in the experiment's folder of logs; none where another machine trained."""
    found = [(path.parent.name, read_times(logs / path.parent.name, path)) for path in metrics]
    return [SeedTimes(seed=name.removeprefix("seed_"), steps=steps) for name, steps in sorted(found) if steps]


def parts_of(times: Sequence[SeedTimes]) -> list[str]:
    """The parts of a step, in the order in which it does them; those that have none at the end."""
    names = {name for seed in times for step in seed.steps for name in step if name.endswith(SECONDS)}
    return [*(name for name in PARTS if name in names), *sorted(names.difference(PARTS))]


def label_of(part: str) -> str:
    """timing/hand_over_seconds -> hand over"""
    return part.partition("/")[2].removesuffix(SECONDS).replace("_", " ")


def write_times_page(
    experiment: str, times: Sequence[SeedTimes], logs: Path, accounts: Mapping[Path, Account] | None = None
) -> Path | None:
    """The page's file; None, and nothing is left of an earlier one, where nothing is known.

    `accounts`: of each execution, by the provenance.json that it has written.
    """
    path = logs / FILE
    if not times and not accounts:
        remove(path)
        return None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = parts_of(times)
    html = environment.get_template(TEMPLATE).render(
        experiment=experiment,
        figure=_figure(times, names) if times else None,
        parts=_parts(times, names),
        facts=facts(times),
        made=made_with(accounts or {}),
        executions=executions(accounts or {}),
    )
    write_text(path, visible(html))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    title: str
    caption: str
    svg: Markup  # our own drawing


def _figure(times: Sequence[SeedTimes], names: Sequence[str]) -> _Figure:
    drawn = step_times(
        [label_of(name) for name in names], {each.seed: [each.mean(name) or 0.0 for name in names] for each in times}
    )
    svg = inline(drawn.svg(transparent=True), drawn.name, drawn.title, drawn.description)
    return _Figure(title=drawn.title, caption=drawn.caption, svg=Markup(svg))


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
    """What is known of each run as a whole, means over seeds; MFU only where the device's peak is known."""
    if not times:
        return []
    shown = {
        "Steps": f"{sum(len(each.steps) for each in times) / len(times):,.0f}",
        "Time in steps": duration(sum(each.seconds for each in times) / len(times)),
        "Tokens per second": _mean(times, "timing/tokens_per_second", "{:,.0f}"),
        "MFU of the update": _mean(times, "timing/update_mfu", "{:.1%}"),
        "MFU of the rollouts": _mean(times, "timing/rollout_mfu", "{:.1%}"),
    }
    return [(name, value) for name, value in shown.items() if value]


def _mean(times: Sequence[SeedTimes], name: str, form: str) -> str:
    means = [mean for each in times if (mean := each.mean(name)) is not None]
    return form.format(sum(means) / len(means)) if means else ""
