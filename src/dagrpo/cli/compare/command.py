"""Command `dagrpo compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import experiments as names
from dagrpo.cli.show.place import Which


def compare(
    experiments: Annotated[
        list[str], typer.Argument(metavar="A B [C ...]", help="names of experiments, or folders", autocompletion=names)
    ],
    which: Annotated[Which, typer.Option(help="policy to compare: base or trained")] = "trained",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: one object")] = False,
    html: Annotated[Path | None, typer.Option(help="also write an HTML page to this file")] = None,
) -> None:
    """Compare experiments: which is better, by how much, and the differences in parameters, data, code, environment and runtime."""
    from dagrpo.cli.compare.comparison import compare as compared
    from dagrpo.cli.compare.rendering import as_object, render, rendered
    from dagrpo.utils.console import plain_console
    from dagrpo.utils.files import write_text

    comparison = compared(experiments, which)
    if html is not None:
        write_text(html, render(comparison))
    if as_json:
        typer.echo(json.dumps(as_object(comparison), indent=2))
    else:
        plain_console().print(rendered(comparison), soft_wrap=False)
