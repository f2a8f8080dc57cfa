"""Command `dagrpo verify`: digests of an experiment, or a checkpoint."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dagrpo.cli.shared import complete_experiments, print_json
from dagrpo.core.errors import UserError, nearest
from dagrpo.core.escape import one_line
from dagrpo.data.reading import name_in_card, picture_digest
from dagrpo.pipeline.accepted import acceptances_of
from dagrpo.pipeline.changes.executions import ExecutionRecord, all_records, experiments
from dagrpo.pipeline.raw_inputs import RawData, is_own, raw_data, raw_recorded
from dagrpo.utils.console import plain_console, progress
from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files
from dagrpo.utils.provenance import PROVENANCE, TOPS

LONGEST = 300
STYLES = {"missing": "bold red", "changed": "bold red", "unknown": "yellow"}
NOT_HERE = "raw data that is not on this machine"
REMEDY = (
    "Copy away what you changed yourself. With this experiment in params.yaml, `dvc checkout --force` restores the outputs that DVC has "
    "recorded, and `snakemake --cores all target` makes the rest again, from raw inputs as they are now."
)


class State(StrEnum):
    """The state of a verified file."""

    WHOLE = "whole"
    MISSING = "missing"
    CHANGED = "changed"
    UNKNOWN = "unknown"  # no record says what it was, or, of raw data, it is not on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A file, or a link between two stages, with its state."""

    path: str
    state: State
    description: str  # what a record says of it, such as "output of train, seed 0"
    bytes: int  # that were read


def verify(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_FOLDER",
            help="an experiment, or a checkpoint's folder",
            autocompletion=complete_experiments,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON for an experiment: a list with an object per file")
    ] = False,
) -> None:
    """Recompute every digest of an experiment, from raw data to report, or check a checkpoint against its manifest.

    Exit code 1 if anything is missing or changed.
    """
    experiment = _experiment(target)
    if experiment is None:
        from dagrpo.checkpoints.compare import verify_weights

        manifest = verify_weights(target)
        counted = f"{len(manifest.files)} files, {manifest.tensors.count} tensors"
        typer.echo(f"{target} is whole: {counted}, digest {manifest.tensors.digest}.")
        return
    verified = verify_files(experiment)
    if as_json:
        print_json([asdict(each) for each in verified])
    else:
        _print(experiment, verified)
        for acceptance in acceptances_of({each.code for each in all_records(experiment)}):
            typer.echo(f"accepted {acceptance}")
    if any(each.state in {State.MISSING, State.CHANGED} for each in verified):
        raise typer.Exit(1)


def _print(experiment: str, verified: Sequence[Verified]) -> None:
    """Print every file that is not whole, the number of files in each state, and what restores them."""
    console = plain_console()
    for each in verified:
        if each.state != State.WHOLE:
            text = f"{one_line(each.path, LONGEST)} ({each.description})"
            console.print(Text.assemble((f"{each.state:8}", STYLES[each.state]), " ", text))
    totals, read = Counter(each.state for each in verified), sum(each.bytes for each in verified) / 1e6
    console.print(
        f"{experiment}: {totals[State.WHOLE]:,} files are what their records say ({read:,.0f} MB read); "
        f"{totals[State.MISSING]:,} missing, {totals[State.CHANGED]:,} changed, {totals[State.UNKNOWN]:,} unknown."
    )
    if totals[State.MISSING] or totals[State.CHANGED]:
        console.print(REMEDY)


def verify_files(experiment: str) -> list[Verified]:
    """Return the state of every file. Raises UserError for a missing or damaged record."""
    records = all_records(experiment)
    if not records:
        raise UserError(
            f"There is no record of an experiment `{experiment}` in {', '.join(TOPS)}: {nearest(experiment, experiments())}."
        )
    outputs = list[Verified]()
    with progress(f"verify {experiment}", len(records), brief=True) as bar:
        for each in records:
            outputs += _outputs(each)
            bar.advance()
    recorded = {verified.path for verified in outputs} | {str(each.provenance) for each in records}
    return [*_raw(records), *outputs, *_inputs(records), *_unknown(experiment, recorded)]


def _raw(records: Sequence[ExecutionRecord]) -> Iterator[Verified]:
    """Yield the state of the raw files that are no inputs: of the hub, and pictures that rows name."""
    for record in records:
        for raw in raw_data(record.outputs, record.params):
            is_input = raw.digest in raw_recorded(record.inputs, record.experiment).values()
            if raw.column is not None or not is_input:
                yield _raw_file(raw)


def _raw_file(raw: RawData) -> Verified:
    if raw.place is None:
        return Verified(path=raw.name, state=State.UNKNOWN, description=NOT_HERE, bytes=0)
    if raw.column is None:
        return _file(raw.place, raw.digest, f"raw data, {raw.name}")
    try:
        found = picture_digest(raw.place, raw.column)
        state, read = State.WHOLE if found.sha256 == raw.digest else State.CHANGED, found.bytes
    except UserError:  # the file that names the pictures is damaged
        state, read = State.CHANGED, 0
    path = name_in_card(str(raw.place), raw.column)
    return Verified(path=path, state=state, description=f"pictures of raw data, {raw.name}", bytes=read)


def _outputs(record: ExecutionRecord) -> Iterator[Verified]:
    for path, digest in record.outputs.items():
        verified = _file(Path(path), digest, f"output of {record.what}")
        yield verified
        if Path(path).name == MANIFEST and verified.state == State.WHOLE:
            try:
                listed = listed_files(Path(path))
            except UserError:  # of something that lists no files
                continue
            for name, entry in listed.items():
                file = Path(path).parent / name
                fault = fault_of(file, entry)
                state = State.WHOLE if fault is None else State.CHANGED if file.is_file() else State.MISSING
                description = f"in a folder of {record.what}"
                yield Verified(path=str(file), state=state, description=description, bytes=entry.bytes)


def _inputs(records: Sequence[ExecutionRecord]) -> Iterator[Verified]:
    """Yield the state of each input against its maker's record; an input that no stage here wrote is read."""
    makers = {path: (each, digest) for each in records for path, digest in each.outputs.items()}
    for each in records:
        for path, digest in each.inputs.items():
            if path in makers:
                maker, recorded = makers[path]
                if recorded != digest:
                    description = f"made again by {maker.what} after {each.what} has read it"
                    yield Verified(path=path, state=State.CHANGED, description=description, bytes=0)
            elif is_own(path, each.experiment):
                if not path.endswith(PROVENANCE):  # which the report reads, and which is itself a record
                    yield _file(Path(path), digest, f"input of {each.what}")
            elif Path(path).is_file():
                yield _file(Path(path), digest, f"raw input of {each.what}")
            else:
                yield Verified(path=path, state=State.UNKNOWN, description=f"{NOT_HERE}, read by {each.what}", bytes=0)


def _unknown(experiment: str, recorded: set[str]) -> Iterator[Verified]:
    for top in TOPS:
        for path in sorted(Path(top, experiment).rglob("*")):
            if path.is_file() and str(path) not in recorded and not any(part.startswith(".") for part in path.parts):
                yield Verified(path=str(path), state=State.UNKNOWN, description="on no record", bytes=0)


def _file(path: Path, digest: str, description: str) -> Verified:
    if not path.is_file():
        return Verified(path=str(path), state=State.MISSING, description=description, bytes=0)
    state = State.WHOLE if sha256_of(path) == digest else State.CHANGED
    return Verified(path=str(path), state=state, description=description, bytes=path.stat().st_size)


def _experiment(target: Path) -> str | None:
    """Return the experiment that is meant, by its name or by one of its folders; None if a checkpoint is meant.

    A single name that is no file or folder here is taken for a misspelt experiment: checkpoints lie deeper.
    """
    parts = target.parts
    if (target / MANIFEST).exists():
        return None
    if len(parts) == 2 and parts[0] in TOPS:
        return parts[1]
    if len(parts) > 2 and parts[0] in TOPS and not target.is_dir():
        return parts[1]
    is_experiment = any(Path(top, target).is_dir() for top in TOPS) or not target.exists()
    return str(target) if len(parts) == 1 and is_experiment else None
