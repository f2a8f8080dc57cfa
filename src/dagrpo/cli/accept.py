"""Command `dagrpo accept`: standing results count as those of today's code."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from dagrpo.core.errors import UserError
from dagrpo.pipeline import accepted
from dagrpo.pipeline.accepted import ACCEPTED, Acceptance
from dagrpo.pipeline.changes.changes import Changes, Kind
from dagrpo.pipeline.changes.executions import Today, all_records
from dagrpo.pipeline.identity import code_digest
from dagrpo.utils.environment import user


def accept(
    because: Annotated[str, typer.Option(help="why the edit cannot change a result; goes on record")],
    stage: Annotated[str | None, typer.Argument(help="one stage; every stage of the experiment without it")] = None,
) -> None:
    """Let the results of params.yaml's experiment count as those of today's code, where nothing but code has changed since."""
    entries = list(_entries(stage, because.strip()))
    if not entries:
        typer.echo("Nothing to accept: no code has changed since these results were made.")
        return
    accepted.accept(entries)
    for each in entries:
        typer.echo(str(each))
    typer.echo(f"On record in {ACCEPTED}; `snakemake -n target` shows what still runs.")


def _entries(stage: str | None, because: str) -> list[Acceptance]:
    """Return an entry for each stage whose code has changed. Raises UserError where something else has, too."""
    today = Today.read()
    if today.selected is None or not because:
        raise UserError("`dagrpo accept` needs a params.yaml, and a reason that is not empty after --because.")
    name = today.selected.experiment.name
    records = [each for each in all_records(name) if stage in (None, each.stage)]
    if not records:
        raise UserError(
            f"{name} has no results{'' if stage is None else f' of a stage {stage}'}: `dagrpo status` lists them."
        )
    changes, at, entries = Changes(today), datetime.now(UTC).isoformat(timespec="seconds"), {}
    for record in records:
        found = changes.of(record)
        others = [each for each in found if each.kind != Kind.CODE]
        if others:
            raise UserError(
                f"{record.what}: {others[0]}, and only code can be accepted: run this stage again, or name another stage "
                f"(`dagrpo status --why {record.provenance}` lists its changes)."
            )
        if found:
            after = code_digest(today.code_of(record) or ())
            entries[record.stage, record.code] = Acceptance(
                stage=record.stage, before=record.code, after=after, by=user(), at=at, because=because
            )
    return list(entries.values())
