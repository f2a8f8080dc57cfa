"""The command `dagrpo plan`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagrpo.cli.shell_completion import gpus
from dagrpo.cli.shell_completion import presets as names

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

EPILOG = (
    "Examples: `dagrpo plan`; `dagrpo plan arithmetic_tiny`; `dagrpo plan qwen3_4b dapo_math gspo h200 --gpu H200 --online`; "
    "`dagrpo plan params.yaml lora --memory 24`"
)
PARAMS = Path("params.yaml")


def plan(
    presets: Annotated[
        list[str] | None,
        typer.Argument(
            help="names of presets, laid over each other as `dagrpo use` does; none: params.yaml", autocompletion=names
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="plan for such a GPU, such as H100; else this machine", autocompletion=gpus),
    ] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", min=0.01, help="plan for GPUs with so many GiB each")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="fetch a model's config.json from the hub where this machine has none")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object; bytes and seconds")] = False,
) -> None:
    """Say what memory and time an experiment takes, before any work; exit code 1 where it cannot fit, with what to change."""
    from dagrpo.cli.own_code import require_own_code
    from dagrpo.cli.plan import terminal
    from dagrpo.cli.plan.outcome import plan_of
    from dagrpo.cli.status.terminal import console
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.plan.machine import machine_for

    require_own_code()
    made = plan_of(_params(presets or []), machine_for(gpu, memory), online=online)
    if as_json:
        typer.echo(json.dumps(asdict(made), indent=2))
    else:
        console().print(terminal.shown(made))
    if made.refusal is not None:
        raise UserError(made.refusal)


def _params(presets: list[str]) -> "Params":
    from dagrpo.config.presets import composed, known
    from dagrpo.config.schema import read_params
    from dagrpo.core.errors import UserError
    from dagrpo.core.suggest import nearest

    if not presets:
        return read_params(PARAMS)
    if len(presets) == 1 and presets[0] not in known() and PARAMS.is_file():
        held = read_params(PARAMS)
        all_names = [*known(), held.experiment.name]
        if held.experiment.name == presets[0]:
            return held
        if not presets[0].endswith(".yaml"):
            raise UserError(f"there is no preset or experiment `{presets[0]}` here: {nearest(presets[0], all_names)}.")
    return composed(presets)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(plan)
