"""The command `dagrpo status`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from dagrpo.completion import experiments as names

EPILOG = "Examples: `dagrpo status`; `dagrpo status arithmetic_tiny`; `dagrpo status --json | jq '.[].state'`"


def status(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT ...]", help="all if none is named", autocompletion=names),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: a list with an object per experiment")] = False,
) -> None:
    """Say of every experiment in this folder whether it is done, running, stale, stopped or failed, and why."""
    from dagrpo.freshness.own_code import require_own_code
    from dagrpo.status import terminal
    from dagrpo.status.experiments import statuses

    require_own_code()
    found = statuses(experiments or ())
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        terminal.console().print(terminal.shown(found))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(status)
