"""Commands `dagrpo ui`, `dagrpo lineage` and `dagrpo tracking`."""

from typing import Annotated

import typer

tracking = typer.Typer(
    no_args_is_help=True, help="The history of runs in MLflow.", epilog="Example: `dagrpo tracking rebuild`"
)


def ui(port: Annotated[int, typer.Option(help="port on 127.0.0.1")] = 5000) -> None:
    """Serve the MLflow UI on this machine and print its address."""
    from dagrpo_mlflow.ui import serve

    serve(port)


def lineage(target: Annotated[str, typer.Argument(metavar="FILE_OR_DIGEST")]) -> None:
    """Trace a file or a digest back to the raw data, and forward to every score that used it."""
    from dagrpo_mlflow.lineage import show as print_lineage

    print_lineage(target)


@tracking.command()
def rebuild() -> None:
    """Record the results that MLflow lacks, for example after `dvc pull`, or after its server was unavailable."""
    from dagrpo_mlflow.sync import sync

    print(f"{sync()} executions recorded; `dagrpo ui` shows them")
