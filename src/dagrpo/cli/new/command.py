"""The command `dagrpo new`."""

from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.new.kinds import Kind

EPILOG = "Examples: `dagrpo new loss tilted`; `dagrpo new task capitals --package ../my_lab`"


def new(
    kind: Annotated[Kind, typer.Argument(help="what to begin")],
    name: Annotated[str, typer.Argument(help="of the file, and by which params.yaml knows it")],
    package: Annotated[
        Path | None, typer.Option(help="the folder of a package of your own, instead of this repository")
    ] = None,
) -> None:
    """Write a working task, verifier, loss or tool with its test, to begin from."""
    from dagrpo.cli.new.written import write

    written = write(kind, name, package)
    typer.echo(f"Written: {written.module} and {written.test}.")
    typer.echo(f"Selected by: {written.selected_by}")
    typer.echo("Next:")
    for step in written.steps:
        typer.echo(f"    {step}")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(new)
