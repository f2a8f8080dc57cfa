"""Command `dagrpo power`."""

import json
from typing import Annotated

import typer

from dagrpo.cli.shell_completion import experiments as names
from dagrpo.cli.show.place import Which


def power(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]",
            help="experiments to compare; of one alone its trained with its base policy",
            autocompletion=names,
        ),
    ],
    wanted: Annotated[
        float | None,
        typer.Option(
            "--points", min=0.01, max=100, help="difference to show, in points; by default the one that these runs have"
        ),
    ] = None,
    which: Annotated[Which, typer.Option(help="policies of A and B to compare: base or trained")] = "trained",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: a list of tasks")] = False,
) -> None:
    """Print how many seeds and problems show a difference, from the variance of finished runs."""
    from dataclasses import asdict

    from dagrpo.cli.power.task_power import of_experiments, rendered
    from dagrpo.utils.console import plain_console

    found = of_experiments(experiments, which, None if wanted is None else wanted / 100)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        plain_console().print(rendered(found))
