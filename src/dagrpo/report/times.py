"""Page of how results were made: date, commit, machine, time, memory.

Written beside the logs, separate from the report: these facts differ on every machine and each time, while the report's bytes
do not depend on who makes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dagrpo.core.metrics import METRICS, definition_of
from dagrpo.report import style
from dagrpo.report.figures.parts import Hover, ReportFigure, legend
from dagrpo.report.format import EN_DASH
from dagrpo.report.html import render_html
from dagrpo.utils.console import duration, size
from dagrpo.utils.files import remove, write_text
from dagrpo.utils.run_info import SECONDS, Account, read_times, step_seconds

FILE = "times.html"
VERSIONS = ("dagrpo", "python", "torch", "sglang", "transformers", "pyarrow")
COLOURS = (*style.SERIES, style.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTimes:
    """The times of one seed's training."""

    seed: str
    steps: Sequence[dict[str, float]]  # of each step, metrics of the group `timing/`

    def mean(self, name: str) -> float | None:
        """Average a time over the steps that have it: the last part of a step before an interruption is not known."""
        values = [step[name] for step in self.steps if name in step]
        return fmean(values) if values else None

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
        values, definition = [step[name] for step in steps if name in step], definition_of(name)
        part = Part(
            label=label_of(name),
            meaning=definition.meaning if definition else "",
            seconds=sum(values) / len(values),
            share=sum(values) / total if total else 0.0,
            longest=max(values),
        )
        rows.append(part)
    return rows


def facts(times: Sequence[SeedTimes]) -> list[tuple[str, str]]:
    """Return the known facts of each run overall, means over seeds; MFU only if the device's peak is known."""
    if not times:
        return []
    facts = {
        "Steps": f"{sum(len(each.steps) for each in times) / len(times):,.0f}",
        "Time in steps": duration(fmean(each.seconds for each in times)),
        "Tokens per second": _mean(times, "timing/tokens_per_second", "{:,.0f}"),
        "MFU of the update": _mean(times, "timing/update_mfu", "{:.1%}"),
        "MFU of the rollouts": _mean(times, "timing/rollout_mfu", "{:.1%}"),
    }
    return [(name, value) for name, value in facts.items() if value]


def _mean(times: Sequence[SeedTimes], name: str, form: str) -> str:
    means = [mean for each in times if (mean := each.mean(name)) is not None]
    return form.format(fmean(means)) if means else ""


def _figure(times: Sequence[SeedTimes], names: Sequence[str]) -> ReportFigure:
    """Draw a stacked bar for each seed: the mean seconds of each part of a step."""
    means = {each.seed: [(label_of(name), each.mean(name) or 0.0) for name in names] for each in times}
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    hovers: list[Hover] = []
    with style.house_style():
        figure = style.new_figure(0.9 + 0.32 * len(means))
        axes = figure.subplots()
        for row, parts in enumerate(means.values()):
            start = 0.0
            for (part, width), colour in zip(parts, colours, strict=True):
                axes.barh(row, width, 0.6, left=start, color=colour)
                ends, text = (start, start + width), f"{part}: {width:.3g} s"
                hovers.append(Hover(axes=axes, text=text, x=ends, y=(row - 0.3, row + 0.3)))
                start += width
        axes.set_yticks(range(len(means)), [f"seed {seed}" for seed in means])
        axes.set_ylim(len(means) - 0.5, -0.5)
        axes.set_xlabel("seconds of a step")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        legend(figure, [(label_of(name), colour, "s") for name, colour in zip(names, colours, strict=True)])
    described = [
        f"seed {seed}: " + ", ".join(f"{part} {value:.3g} s" for part, value in parts) for seed, parts in means.items()
    ]
    return ReportFigure(
        name="step_times",
        figure=figure,
        title="Parts of a step",
        description="; ".join(described) + ".",
        caption="Means over the steps of each seed.",
        hovers=hovers,
    )


def circumstances(accounts: Mapping[Path, Account]) -> list[tuple[str, str]]:
    """Return dates, commit, software and hardware of all executions; unknown facts are left out."""
    if not accounts:
        return []
    known = list(accounts.values())
    days = sorted({each.started[:10] for each in known})
    commits = {
        f"{commit} with uncommitted changes" if each.facts.get("git.dirty") == "true" else commit
        for each in known
        if (commit := each.facts.get("git.commit"))
    }
    facts = {
        "Date": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}",
        "Commit": ", ".join(sorted(commits)),
        "Software": ", ".join(f"{name} {version}" for name in VERSIONS if (version := _fact(known, f"version.{name}"))),
        "Lock": _fact(known, "environment.lock"),
        "Processor": _fact(known, "hardware.processor"),
        "Cores": _fact(known, "hardware.cores"),
        "Memory": _fact(known, "hardware.memory"),
        "GPU": _fact(known, "hardware.gpu") or "none",
        "Time of all stages": duration(sum(each.seconds for each in known)),
    }
    return [(name, value) for name, value in facts.items() if value]


def _fact(accounts: list[Account], name: str) -> str:
    return ", ".join(sorted({str(value) for account in accounts if (value := account.facts.get(name))}))


def executions(accounts: Mapping[Path, Account]) -> list[tuple[str, ...]]:
    """Return a row for each execution, in order of their start.

    Stage, seed, folder of the outputs, start, duration, memory of the process, and of its largest child.
    """
    rows: list[tuple[str, ...]] = []
    for provenance, account in sorted(accounts.items(), key=lambda each: (each[1].started, str(each[0]))):
        taken = "cache hit, " if account.is_taken_over else ""
        again = f", attempt {account.attempt}" if account.attempt > 1 else ""
        row = (
            account.stage,
            "" if account.seed is None else str(account.seed),
            "/".join(provenance.parts[-3:-1]),
            account.started[:19].replace("T", " "),
            f"{taken}{duration(account.seconds)}{again}",
            size(account.memory) if account.memory else EN_DASH,
            size(account.memory_of_children) if account.memory_of_children else EN_DASH,
        )
        rows.append(row)
    return rows
