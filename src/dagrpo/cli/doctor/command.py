"""Command `dagrpo doctor`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dagrpo.cli.doctor.finding import Finding

STYLES = {"ok": "green", "missing": "bold red", "none": "yellow"}
LONGEST = 200


def doctor(
    online: Annotated[bool, typer.Option("--online", help="also check that the hub answers")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: a list with an object per line")] = False,
) -> None:
    """Check this machine and suggest fixes; exit code 1 if a requirement of runs is missing."""
    from dagrpo.cli.doctor import machine, software
    from dagrpo.utils.console import plain_console

    on_machine = machine.findings(needs_isolation=software.needs_isolation())
    findings = [*software.findings(), *on_machine, *software.credentials(online=online)]
    if as_json:
        typer.echo(json.dumps([asdict(each) | {"state": each.state} for each in findings], indent=2))
    else:
        plain_console().print(_table(findings), soft_wrap=False)
    if any(each.is_trouble for each in findings):
        raise typer.Exit(1)


def _table(findings: Sequence["Finding"]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from dagrpo.core.escape import one_line

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        text = Text(one_line(each.detail, LONGEST))
        if not each.is_there:
            text.append(f"\n{each.remedy}", style="dim")
        table.add_row(Text(each.state, STYLES[each.state]), each.name, text)
    return table
