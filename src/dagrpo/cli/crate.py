"""Command `dagrpo crate`."""

from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import experiments


def crate(
    experiment: Annotated[str, typer.Argument(help="a finished experiment", autocompletion=experiments)],
    to: Annotated[Path | None, typer.Option("--to", help="folder to write; by default EXPERIMENT.crate")] = None,
) -> None:
    """Write a finished experiment as a Workflow Run RO-Crate: each action with its parameters, digests, times and environment."""
    from dagrpo.core.errors import UserError
    from dagrpo.pipeline.crate.finished import read_finished
    from dagrpo.pipeline.crate.writing import write_crate

    folder = to or Path(f"{experiment}.crate")
    if folder.exists():
        raise UserError(f"{folder} exists: remove it, or name another folder with --to.")
    finished = read_finished(experiment)
    write_crate(finished, folder)
    typer.echo(
        f"Written: {folder}, {len(finished.records)} actions. `dagrpo reproduce {folder}` runs them again, also on another machine."
    )
