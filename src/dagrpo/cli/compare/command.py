"""The command `dagrpo compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import experiments as names
from dagrpo.cli.show.place import Which

EPILOG = "Examples: `dagrpo compare arithmetic_tiny arithmetic_tiny-gspo`; `dagrpo compare A B C --html compared.html`"


def compare(
    experiments: Annotated[
        list[str], typer.Argument(metavar="A B [C ...]", help="names of experiments, or folders", autocompletion=names)
    ],
    which: Annotated[Which, typer.Option(help="whose scores: those of base or of trained")] = "trained",
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object")] = False,
    html: Annotated[Path | None, typer.Option(help="also write it as a page to this file")] = None,
) -> None:
    """Say which experiment is better, by how much, and what differs in parameters, data, code, environment and runtime."""
    from dagrpo.cli.compare.comparison import compare as compared
    from dagrpo.cli.compare.page import render
    from dagrpo.cli.compare.terminal import shown
    from dagrpo.cli.status.terminal import console
    from dagrpo.utils.files import write_text

    comparison = compared(experiments, which)
    if html is not None:
        write_text(html, render(comparison))
    if as_json:
        typer.echo(json.dumps(comparison.as_object(), indent=2))
    else:
        console().print(shown(comparison), soft_wrap=False)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog=EPILOG)(compare)
