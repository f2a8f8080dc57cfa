"""Experiments on a terminal or in a pipe: a line each, details."""

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.text import Text

from dagrpo.cli.status.experiments import Progress, Stale, State, Status
from dagrpo.core.escape import one_line, sentence
from dagrpo.pipeline.plan.amounts import size
from dagrpo.utils.console import duration

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


def rendered(statuses: Sequence[Status]) -> Group:
    """Render all statuses; without any, advice on selecting an experiment."""
    if not statuses:
        return Group(Text("No experiment has been run in this folder: `dagrpo use arithmetic_tiny` selects one."))
    return Group(*(line for status in statuses for line in _lines(status)))


def _lines(status: Status) -> Iterator[Text]:
    line = Text.assemble(
        (one_line(status.experiment, LONGEST_NAME), "bold"), "  ", (status.state.value, STYLES[status.state])
    )
    line.append(f"  {one_line(status.score, LONGEST_CHANGE)}" if status.score else "")
    line.append(f"  {_stages(status)}", style="dim")
    if status.rollout_bytes >= LEAST_SIZE:
        line.append(f", {size(status.rollout_bytes)} of rollouts", style="dim")
    line.append("  (params.yaml)" if status.is_selected else "", style="dim")
    yield line
    if status.runner:
        yield Text(f"  by {status.runner}", style="dim")
    yield from (Text(f"  {_progress(progress)}") for progress in status.progress)
    yield from (
        Text(
            f"  {failure.what}: {sentence(failure.sentence).removesuffix('.')}. Log: {one_line(failure.log, LONGEST_CHANGE)}",
            style="red",
        )
        for failure in status.failures
    )
    yield from (Text(f"  {sentence(message)}", style="red") for message in status.damaged)
    yield from (Text(f"  {one_line(gone, LONGEST_CHANGE)}", style="dim") for gone in status.gone[:MOST_CHANGES])
    if status.state == State.RUNNING:  # the run makes stale outputs again
        return
    yield from (Text(f"  {_stale(stale)}", style="yellow") for stale in status.stale[:MOST_STALE])
    if len(status.stale) > MOST_STALE:
        rest = len(status.stale) - MOST_STALE
        yield Text(f"  and {rest} more {'stage is' if rest == 1 else 'stages are'} stale", style="yellow")


def _stages(status: Status) -> str:
    return f"{status.made} stages" if status.expected is None else f"{status.made} of {status.expected} stages"


def _progress(progress: Progress) -> str:
    if progress.step is None:
        return progress.what
    parts = [f"{progress.what}: step {progress.step} of {progress.steps}"]
    parts += [f"reward {progress.reward:.3f}"] if progress.reward is not None else []
    parts += [f"{duration(progress.seconds_left)} left"] if progress.seconds_left is not None else []
    return ", ".join(parts)


def _stale(stale: Stale) -> str:
    texts = [one_line(str(change), LONGEST_CHANGE) for change in stale.changes[:MOST_CHANGES]]
    rest = len(stale.changes) - len(texts)
    return f"{stale.what} would run again: {'; '.join(texts)}" + (f"; and {rest} more" if rest else "")
