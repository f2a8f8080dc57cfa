"""Command `dagrpo sweep`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import sweeps


def sweep(
    name: Annotated[
        str, typer.Argument(metavar="SWEEP", help="name of a sweep in presets/sweeps, or a file", autocompletion=sweeps)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: one object")] = False,
    html: Annotated[Path | None, typer.Option(help="also write an HTML page to this file")] = None,
) -> None:
    """Compare the finished cells of a sweep over the experiment of params.yaml; `snakemake --config sweep=SWEEP` runs them."""
    from dagrpo.cli.sweep.rendering import as_object, render, rendered
    from dagrpo.cli.sweep.results import read_results
    from dagrpo.config.schema import read_params
    from dagrpo.pipeline.override_runs import PARAMS
    from dagrpo.utils.console import plain_console
    from dagrpo.utils.files import write_text

    results = read_results(name, read_params(PARAMS))
    if html is not None:
        write_text(html, render(results))
    if as_json:
        typer.echo(json.dumps(as_object(results), indent=2))
    else:
        plain_console().print(rendered(results), soft_wrap=False)
