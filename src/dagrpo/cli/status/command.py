"""Command `dagrpo status`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import experiments as names
from dagrpo.core.errors import UserError


def status(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT ...]", help="by default all", autocompletion=names),
    ] = None,
    why: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="explain why the stage that makes this output, checkpoint folder or provenance.json would run again: "
            "the parameter, input, or line of code that has changed",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON: a list with an object per experiment; with --why one object")
    ] = False,
) -> None:
    """Print the state of every experiment in this folder (done, running, stale, stopped or failed), and the reason."""
    from dagrpo.cli.status import terminal
    from dagrpo.cli.status.experiments import statuses
    from dagrpo.config.project import require_own_code
    from dagrpo.pipeline.changes.today import Today
    from dagrpo.utils.console import plain_console

    require_own_code()
    if why is not None:
        _explain(why, experiments or (), as_json=as_json)
        return
    mistake: UserError | None = None
    try:
        today = Today.read()
    except UserError as error:
        today, mistake = Today(), error
    result = statuses(today, experiments or ())
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in result], indent=2))
    elif result or mistake is None:
        plain_console().print(terminal.rendered(result))
    if mistake is not None:  # of the selected experiment: the others are shown before
        raise mistake


def _explain(file: Path, experiments: Sequence[str], *, as_json: bool) -> None:
    from dagrpo.cli.status.why import explain, rendered
    from dagrpo.utils.console import plain_console

    if experiments:
        raise UserError("--why FILE stands alone: leave out the names of experiments.")
    explanation = explain(file)
    if as_json:
        typer.echo(json.dumps(asdict(explanation) | {"is_up_to_date": explanation.is_up_to_date}, indent=2))
    else:
        plain_console().print(rendered(explanation))
