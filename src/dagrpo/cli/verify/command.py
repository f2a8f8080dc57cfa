"""Output of `dagrpo verify` for an experiment.

`checkpoints.commands` prints that of a checkpoint.
"""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import TOPS

LONGEST = 300


def experiment_of(target: Path) -> str | None:
    """Return the experiment that is meant, by its name or by one of its folders; None: a checkpoint is meant.

    A single name that is no file or folder here is taken for a misspelt experiment: checkpoints lie deeper.
    """
    parts = target.parts
    if (target / MANIFEST).exists():
        return None
    if len(parts) == 2 and parts[0] in TOPS:
        return parts[1]
    is_experiment = any(Path(top, target).is_dir() for top in TOPS) or not target.exists()
    return str(target) if len(parts) == 1 and is_experiment else None


def verify_experiment(experiment: str, *, as_json: bool) -> None:
    """Print what is not whole; exit code 1 where something is missing or was changed."""
    from rich.text import Text

    from dagrpo.cli.status.terminal import console
    from dagrpo.cli.verify.experiment import State, counts, verify
    from dagrpo.core.escape import one_line

    verified = verify(experiment)
    found = counts(verified)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in verified], indent=2))
    else:
        styles = {State.MISSING: "bold red", State.CHANGED: "bold red", State.UNKNOWN: "yellow"}
        shown = console()
        for each in verified:
            if each.state != State.WHOLE:
                told = f"{one_line(each.path, LONGEST)} ({each.said})"
                shown.print(Text.assemble((f"{each.state:8}", styles[each.state]), " ", told))
        read = sum(each.bytes for each in verified) / 1e6
        shown.print(
            f"{experiment}: {found[State.WHOLE]:,} files are what their records say ({read:,.0f} MB read); "
            f"{found[State.MISSING]:,} missing, {found[State.CHANGED]:,} changed, {found[State.UNKNOWN]:,} unknown."
        )
    if found[State.MISSING] or found[State.CHANGED]:
        raise typer.Exit(1)
