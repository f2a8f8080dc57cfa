"""Command `dagrpo status`: a line for each experiment, and its details."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from dagrpo.cli.shared import complete_experiments, print_json
from dagrpo.cli.status.experiments import Progress, Stale, State, Status, statuses
from dagrpo.cli.status.why import explain, render_lines
from dagrpo.config.project import require_own_code
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line, sentence
from dagrpo.pipeline.changes.executions import Today
from dagrpo.utils.console import duration, plain_console, size

STYLES = {
    State.RUNNING: "bold cyan",
    State.FAILED: "bold red",
    State.STOPPED: "bold yellow",
    State.STALE: "bold yellow",
    State.DONE: "bold green",
    State.UNFINISHED: "bold",
}
MOST_STALE, MOST_CHANGES = 4, 3  # shown of one experiment, and of one stage
LEAST_SIZE = 10**8  # bytes of rollouts that are worth a word
LONGEST_CHANGE, LONGEST_NAME = 160, 80
NOTHING_HERE = "No experiment has been run in this folder: `dagrpo use arithmetic_tiny` selects one."


def status(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT ...]", help="by default all", autocompletion=complete_experiments),
    ] = None,
    why: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="explain why the stage that makes this output, checkpoint folder or provenance.json would run again: "
            "the parameter, input, or line of code that has changed",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON: a list with an object per experiment; with --why one object")
    ] = False,
) -> None:
    """Print the state of every experiment in this folder (done, running, stale, stopped or failed), and the reason."""
    require_own_code()
    if why is not None and experiments:
        raise UserError("--why FILE stands alone: leave out the names of experiments.")
    if why is not None:
        explanation = explain(why)
        if as_json:
            print_json(asdict(explanation) | {"is_up_to_date": explanation.is_up_to_date})
        else:
            plain_console().print(Group(*render_lines(explanation)))
        return
    mistake: UserError | None = None
    try:
        today = Today.read()
    except UserError as error:
        today, mistake = Today(), error
    result = statuses(today, experiments or ())
    if as_json:
        print_json([asdict(each) for each in result])
    elif result or mistake is None:
        lines = [line for each in result for line in _lines(each)]
        plain_console().print(Group(*lines or [Text(NOTHING_HERE)]))
    if mistake is not None:  # of the selected experiment: the others are shown before
        raise mistake


def _lines(status: Status) -> Iterator[Text]:
    name = (one_line(status.experiment, LONGEST_NAME), "bold")
    line = Text.assemble(name, "  ", (status.state.value, STYLES[status.state]))
    line.append(f"  {one_line(status.score, LONGEST_CHANGE)}" if status.score else "")
    made = f"{status.made} stages" if status.expected is None else f"{status.made} of {status.expected} stages"
    line.append(f"  {made}", style="dim")
    if status.rollout_bytes >= LEAST_SIZE:
        line.append(f", {size(status.rollout_bytes)} of rollouts", style="dim")
    line.append("  (params.yaml)" if status.is_selected else "", style="dim")
    yield line
    if status.runner:
        yield Text(f"  by {status.runner}", style="dim")
    yield from (Text(f"  {_progress(progress)}") for progress in status.progress)
    for failure in status.failures:
        what = f"{failure.what}: {sentence(failure.sentence).removesuffix('.')}"
        yield Text(f"  {what}. Log: {one_line(failure.log, LONGEST_CHANGE)}", style="red")
    yield from (Text(f"  {sentence(message)}", style="red") for message in status.damaged)
    yield from (Text(f"  {one_line(gone, LONGEST_CHANGE)}", style="dim") for gone in status.gone[:MOST_CHANGES])
    if status.state == State.RUNNING:  # the run makes stale outputs again
        return
    yield from (Text(f"  {_stale(stale)}", style="yellow") for stale in status.stale[:MOST_STALE])
    if len(status.stale) > MOST_STALE:
        rest = len(status.stale) - MOST_STALE
        yield Text(f"  and {rest} more {'stage is' if rest == 1 else 'stages are'} stale", style="yellow")


def _progress(progress: Progress) -> str:
    if progress.step is None:
        return progress.what
    parts = [f"{progress.what}: step {progress.step} of {progress.steps}"]
    of_tasks = ", ".join(f"{task} {reward:.3f}" for task, reward in progress.rewards.items())
    mixture = f" ({of_tasks})" if of_tasks else ""
    parts += [f"reward {progress.reward:.3f}{mixture}"] if progress.reward is not None else []
    parts += [f"{duration(progress.seconds_left)} left"] if progress.seconds_left is not None else []
    return ", ".join(parts)


def _stale(stale: Stale) -> str:
    texts = [one_line(str(change), LONGEST_CHANGE) for change in stale.changes[:MOST_CHANGES]]
    rest = len(stale.changes) - len(texts)
    return f"{stale.what} would run again: {'; '.join(texts)}" + (f"; and {rest} more" if rest else "")
