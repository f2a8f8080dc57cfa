"""The command `dagrpo why`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: `dagrpo why results/arithmetic_tiny/runs/seed_0/policy`"


def why(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="an output, a checkpoint's folder, or a provenance.json")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object")] = False,
) -> None:
    """Say why the stage that makes a file would run again: which parameter, input, or line of code has changed."""
    from dagrpo.freshness.own_code import require_own_code
    from dagrpo.status.terminal import console
    from dagrpo.why.explanation import explain
    from dagrpo.why.terminal import shown

    require_own_code()
    explanation = explain(file)
    if as_json:
        typer.echo(json.dumps(asdict(explanation) | {"is_up_to_date": explanation.is_up_to_date}, indent=2))
    else:
        console().print(shown(explanation))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(why)
