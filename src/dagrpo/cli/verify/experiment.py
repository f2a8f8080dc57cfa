"""Check every file of an experiment against its records.

Nothing is computed again: `dagrpo replay` does that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dagrpo.cli.verify.raw_data import raw_data
from dagrpo.core.errors import UserError
from dagrpo.core.suggest import nearest
from dagrpo.data.pictures_beside import name_in_card
from dagrpo.pipeline.changes.executions import ExecutionRecord, all_records, experiments
from dagrpo.utils.files import sha256_of
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files
from dagrpo.utils.provenance import PROVENANCE, TOPS


class State(StrEnum):
    """The state of a verified file."""

    WHOLE = "whole"
    MISSING = "missing"
    CHANGED = "changed"
    UNKNOWN = "unknown"  # no record says what it was, or, of raw data, it is not on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One file, or one link between two stages."""

    path: str
    state: State
    said: str  # what a record says of it, such as "output of train, seed 0"
    bytes: int  # that were read


def verify(experiment: str) -> list[Verified]:
    """Return the state of every file. Raises UserError for a missing or damaged record."""
    executions = all_records(experiment)
    if not executions:
        raise UserError(
            f"There is no record of an experiment `{experiment}` in {', '.join(TOPS)}: {nearest(experiment, experiments())}."
        )
    outputs = [verified for each in executions for verified in _outputs(each)]
    known = {verified.path for verified in outputs} | {str(each.provenance) for each in executions}
    return [*_raw(executions), *outputs, *_inputs(executions), *_unknown(experiment, known)]


def _raw(executions: Sequence[ExecutionRecord]) -> Iterator[Verified]:
    for raw in (raw for each in executions if each.stage == "prepare" for raw in raw_data(each)):
        if raw.place is None:
            yield Verified(path=raw.name, state=State.UNKNOWN, said="raw data that is not on this machine", bytes=0)
            continue
        digest, read = raw.read()
        state = State.WHOLE if digest == raw.digest else State.CHANGED
        path, said = (
            (raw.place, "") if raw.column is None else (name_in_card(str(raw.place), raw.column), "pictures of ")
        )
        yield Verified(path=str(path), state=state, said=f"{said}raw data, {raw.name}", bytes=read)


def _outputs(execution: ExecutionRecord) -> Iterator[Verified]:
    for path, digest in execution.outputs.items():
        verified = _file(Path(path), digest, f"output of {execution.what}")
        yield verified
        if Path(path).name == MANIFEST and verified.state == State.WHOLE:
            yield from _folder(Path(path), f"in a folder of {execution.what}")


def _folder(manifest: Path, said: str) -> Iterator[Verified]:
    try:
        listed = listed_files(manifest)
    except UserError:  # of something that lists no files
        return
    for name, entry in listed.items():
        path = manifest.parent / name
        fault = fault_of(path, entry)
        state = State.WHOLE if fault is None else State.CHANGED if path.is_file() else State.MISSING
        yield Verified(path=str(path), state=state, said=said, bytes=entry.bytes)


def _inputs(executions: Sequence[ExecutionRecord]) -> Iterator[Verified]:
    """Yield the state of each input against its maker's record; one that no stage here wrote is read."""
    makers = {path: (each, digest) for each in executions for path, digest in each.outputs.items()}
    for each in executions:
        for path, digest in each.inputs.items():
            if path in makers:
                maker, recorded = makers[path]
                if recorded != digest:
                    said = f"made again by {maker.what} after {each.what} has read it"
                    yield Verified(path=path, state=State.CHANGED, said=said, bytes=0)
            elif not _is_record(path):
                yield _file(Path(path), digest, f"input of {each.what}")


def _is_record(path: str) -> bool:
    """Return a provenance file, which the report reads: it says itself what it is."""
    return path.endswith(PROVENANCE)


def _unknown(experiment: str, known: set[str]) -> Iterator[Verified]:
    for top in TOPS:
        for path in sorted(Path(top, experiment).rglob("*")):
            if path.is_file() and str(path) not in known and not any(part.startswith(".") for part in path.parts):
                yield Verified(path=str(path), state=State.UNKNOWN, said="on no record", bytes=0)


def _file(path: Path, digest: str, said: str) -> Verified:
    if not path.is_file():
        return Verified(path=str(path), state=State.MISSING, said=said, bytes=0)
    state = State.WHOLE if sha256_of(path) == digest else State.CHANGED
    return Verified(path=str(path), state=state, said=said, bytes=path.stat().st_size)


def counts(verified: Sequence[Verified]) -> Mapping[State, int]:
    """Return the number of files in each state."""
    return {state: sum(each.state == state for each in verified) for state in State}
