"""Command `dagrpo power`: seeds and problems that show a difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import Which, complete_experiments, print_json
from dagrpo.core.errors import UserError
from dagrpo.evaluation.power import POWER, detectable
from dagrpo.evaluation.statistics import Variance, variance_of
from dagrpo.report.format import percent, plural, points
from dagrpo.utils.console import plain_console
from dagrpo_compare.comparison import Evaluated, read_evaluated, shared_by, trouble_between, values_of

SEEDS = (2, 3, 5, 10, 20)
MOST_PROBLEMS = 10_000_000
GREEDY = "greedy"


def power(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]",
            help="experiments to compare; of one alone its trained with its base policy",
            autocompletion=complete_experiments,
        ),
    ],
    wanted: Annotated[
        float | None,
        typer.Option(
            "--points", min=0.01, max=100, help="difference to show, in points; by default the one that these runs have"
        ),
    ] = None,
    which: Annotated[Which, typer.Option(help="policies of A and B to compare: base or trained")] = "trained",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: a list of tasks")] = False,
) -> None:
    """Print how many seeds and problems show a difference, from the variance of finished runs."""
    found = compute_power(experiments, which, None if wanted is None else wanted / 100)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        plain_console().print(Group(*(part for each in found for part in _parts(each))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A number of seeds, the problems it needs, and the difference it shows."""

    seeds: int
    problems: int | None  # that show the wanted difference; None: however many, these seeds do not show it
    detectable: float  # with the problems of the runs that are there


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPower:
    """The variance of one task's greedy accuracy, and what follows from it; differences are shares."""

    task: str
    first: str
    second: str
    seeds: int
    problems: int
    confidence: float
    difference: float  # second minus first
    wanted: float
    detectable: float  # with the seeds and problems that are there
    variance: Variance
    plans: tuple[Plan, ...]


def compute_power(experiments: Sequence[str], which: Which, wanted: float | None) -> list[TaskPower]:
    """Compute the power of each task of two experiments, or of an experiment's trained policy against its base policy.

    Raises UserError if a name has no scores, or there is nothing to compare.
    """
    if len(experiments) > 2:
        raise UserError("Name one experiment or two: `dagrpo power A B`.")
    policies: tuple[Which, Which] = ("base", "trained") if len(experiments) == 1 else (which, which)
    first, second = (
        read_evaluated(name, policy) for name, policy in zip((experiments[0], experiments[-1]), policies, strict=True)
    )
    labels = tuple(
        f"{each.name} ({policy})" if len(experiments) == 1 else each.name
        for each, policy in zip((first, second), policies, strict=True)
    )
    troubles = {task: trouble_between(first, second, task) or _few(first, second, task) for task in first.tasks}
    found = [_of_task(first, second, task, labels, wanted) for task, trouble in troubles.items() if trouble is None]
    if not found:
        raise UserError(" ".join(map(str, troubles.values())))
    return found


def _few(first: Evaluated, second: Evaluated, task: str) -> str | None:
    if len(shared_by(first, second, task)[1]) > 1:
        return None
    return f"{task}: one shared problem has no variance: evaluate both on more (`data.max_test`)."


def _of_task(first: Evaluated, second: Evaluated, task: str, labels: Sequence[str], wanted: float | None) -> TaskPower:
    seeds, problems = shared_by(first, second, task)
    one, other = (values_of(each, task, seeds, problems)[GREEDY] for each in (first, second))
    differences = other - one
    variance, confidence = variance_of(differences), first.resampling(task).confidence
    difference = float(differences.mean())
    goal = abs(difference) if wanted is None else wanted
    return TaskPower(
        task=task,
        first=labels[0],
        second=labels[1],
        seeds=len(differences),
        problems=len(problems),
        confidence=confidence,
        difference=difference,
        wanted=goal,
        detectable=detectable(variance, len(differences), len(problems), confidence),
        variance=variance,
        plans=tuple(
            Plan(
                seeds=count,
                problems=problems_needed(variance, goal, count, confidence) if goal else None,
                detectable=detectable(variance, count, len(problems), confidence),
            )
            for count in ((1,) if variance.is_of_one_seed else SEEDS)
        ),
    )


def problems_needed(
    variance: Variance, difference: float, seeds: int, confidence: float, power: float = POWER
) -> int | None:
    """Return the least number of problems with which `seeds` show a difference; None if no number of problems does."""

    def is_enough(problems: int) -> bool:
        return detectable(variance, seeds, problems, confidence, power) <= difference

    # From below: with few seeds many problems show less again, since Student's interval then has their few degrees of freedom.
    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_PROBLEMS:
            return None
    low = high // 2  # not enough, or too few for a variance
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _parts(power: TaskPower) -> Iterator[RenderableType]:
    there = f"{plural(power.problems, 'problem')} and {plural(power.seeds, 'seed')}"
    yield Text(f"{power.task}: {power.second} against {power.first}, greedy accuracy", style="bold")
    yield Text(f"{there}: {points(power.difference)} points, of standard deviations {_deviations(power.variance)}.")
    yield Text(
        f"They show {100 * power.detectable:.1f} points or more: the {100 * power.confidence:g}% interval then excludes 0 in "
        f"{percent(POWER)} of repetitions."
    )
    if power.variance.is_of_one_seed:
        yield Text("One seed says nothing of the variation between seeds: run three or more, then ask again.", "yellow")
    yield _table(power)


def _deviations(variance: Variance) -> str:
    parts: Mapping[str, float] = {
        "between problems": variance.problems,
        **({} if variance.is_of_one_seed else {"between seeds": variance.seeds, "of the rest": variance.rest}),
    }
    return ", ".join(f"{100 * sqrt(value):.1f} {name}" for name, value in parts.items())


def _table(power: TaskPower) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    wanted, shown = (
        f"problems that show {100 * power.wanted:.1f} points",
        f"points shown by {power.problems:,} problems",
    )
    for heading in ("seeds", wanted, shown):
        table.add_column(heading, justify="right")
    for plan in power.plans:
        needed = "more seeds" if plan.problems is None else f"{plan.problems:,}"
        table.add_row(str(plan.seeds), needed if power.wanted else "-", f"{100 * plan.detectable:.1f}")
    return table
