"""The command `dagrpo status`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

EPILOG = "Examples: `dagrpo status`; `dagrpo status --json | jq '.[].state'`"


def status(
    as_json: Annotated[bool, typer.Option("--json", help="for programs: a list with an object per experiment")] = False,
) -> None:
    """Say of every experiment in this folder whether it is done, running, stale, stopped or failed, and why."""
    from dagrpo.freshness.own_code import require_own_code
    from dagrpo.status import terminal
    from dagrpo.status.experiments import all_statuses

    require_own_code()
    statuses = all_statuses()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in statuses], indent=2))
    else:
        terminal.console().print(terminal.shown(statuses))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(status)
