"""Command `dagrpo profile`."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shell_completion import presets as names
from dagrpo.core.errors import UserError
from dagrpo.utils.timings import GROUP, SECONDS

if TYPE_CHECKING:
    from rich.table import Table

    from dagrpo.cli.profiling.measured import StepProfile
    from dagrpo.config.schema import Params

PARAMS = Path("params.yaml")
UPDATE = "update"
MOST_OPERATORS = 12  # rows of the second table
ENDING = ".json.gz"
GIBIBYTE = 1 << 30


def profile(
    experiment: Annotated[
        str | None,
        typer.Argument(help="name of a preset; by default the experiment of params.yaml", autocompletion=names),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="number of steps to measure, after one warm-up step")] = 3,
    to: Annotated[Path | None, typer.Option(help=f"new file for the trace, NAME{ENDING}")] = None,
    seed: Annotated[int | None, typer.Option(help="one of experiment.seeds; by default the first")] = None,
) -> None:
    """Run a few training steps in a scratch folder, and report where their time goes. The experiment's results stay unchanged."""
    from dagrpo.cli.train.command import training_run
    from dagrpo.config.project import require_own_code
    from dagrpo.pipeline.declaration import threads_of
    from dagrpo.pipeline.stages.train import STAGE
    from dagrpo.utils.console import plain_console, say
    from dagrpo.utils.devices import own_devices
    from dagrpo.utils.threads import fix_threads

    require_own_code()
    params = _params(experiment)
    trace = to or Path(f"profile-{params.experiment.name}{ENDING}")
    _require_new_file(trace)
    if params.runtime.training.processes > 1:
        raise UserError(
            f"runtime.training.processes is {params.runtime.training.processes}, and a profile is of one process, which may need other "
            "memory: set it to 1 in params.yaml for the profile."
        )
    gpus = own_devices(STAGE.needs(params.runtime).gpus)  # GPUs that no run holds
    with TemporaryDirectory(prefix="dagrpo-profile-") as scratch, gpus:
        run = training_run(params, seed, Path(scratch))
        threads = threads_of(STAGE, run.runtime)
        fix_threads(threads)
        from dagrpo.cli.profiling.measured import measure

        say(f"{params.experiment.name}: one step to warm up, then {steps} measured, in one process")
        measured = measure(run, steps, trace, threads)
    plain_console().print(parts_table(measured))
    plain_console().print(operators_table(measured))
    print("\n".join(_summary(measured)))
    print(f"The trace is in {trace}: open it at https://ui.perfetto.dev or in chrome://tracing.")


def _params(experiment: str | None) -> "Params":
    from dagrpo.config.presets import composed
    from dagrpo.config.schema import read_params

    if experiment is None:
        return read_params(PARAMS)
    if PARAMS.is_file():
        params = read_params(PARAMS)
        if params.experiment.name == experiment:
            return params
    return composed([experiment])


def _require_new_file(trace: Path) -> None:
    if not trace.name.endswith(ENDING):
        raise UserError(f"--to {trace} does not end in {ENDING}: torch writes a compressed JSON file.")
    if os.path.lexists(trace):  # a link to a file that is not there is followed, too
        raise UserError(f"{trace} already exists: name another file with --to, or delete it.")
    if not trace.absolute().parent.is_dir():
        raise UserError(f"--to {trace} is in a folder that is not there: make it, or name another file.")


def parts_table(measured: "StepProfile") -> "Table":
    """Return a row for each part of a step, the longest first, with the parts of the update below it."""
    table = _table("of a step", "seconds", "share")
    parts = {name: value for name, value in measured.parts.items() if name.endswith(SECONDS)}
    whole = sum(parts.values())
    for name, value in sorted(parts.items(), key=lambda part: -part[1]):
        label = name.removeprefix(GROUP).removesuffix(SECONDS)
        table.add_row(label, f"{value:.3f}", f"{value / whole:.0%}")
        if label == UPDATE:
            for inner, seconds in _of_update(measured, value):
                table.add_row(f"  {inner}", f"{seconds:.3f}", f"{seconds / whole:.0%}")
    table.add_row("all", f"{whole:.3f}", "100%")
    return table


def _of_update(measured: "StepProfile", whole: float) -> Iterator[tuple[str, float]]:
    yield "backward pass", measured.backward
    yield "optimizer", measured.optimizer
    yield "forward pass, loss, and waiting", max(whole - measured.backward - measured.optimizer, 0.0)


def operators_table(measured: "StepProfile") -> "Table":
    """Return a row for each of the operators with the most self time, per step."""
    table = _table("operator, per step", "calls", "own seconds", "share")
    whole = sum(each.seconds for each in measured.operators)
    for each in measured.operators[:MOST_OPERATORS]:
        seconds, share = each.seconds / measured.steps, each.seconds / whole if whole else 0.0
        table.add_row(each.name, f"{each.calls / measured.steps:,.0f}", f"{seconds:.3f}", f"{share:.0%}")
    return table


def _summary(measured: "StepProfile") -> Iterator[str]:
    yield f"Matrix products take {measured.share_of_products:.0%} of the operators' time."
    if measured.launches:
        yield f"Kernels launched per step: {measured.launches / measured.steps:,.0f}."
    if measured.peak_bytes is not None:
        yield f"Peak memory of the trainer on the GPU: {measured.peak_bytes / GIBIBYTE:.1f} GiB."


def _table(first: str, *others: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
