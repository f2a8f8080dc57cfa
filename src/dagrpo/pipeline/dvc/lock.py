"""Check and repair of dvc.lock, without loss of records.

A merge, a full disk or a kill may damage it. DVC checks the whole of it, in seconds; this the starts of its lines. A `dvc repro` that
is killed while it writes leaves a part of it: the copy that its stages keep takes its place.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc.lock_text import CUT_SHORT, fault_of
from dagrpo.pipeline.dvc.private import LOCK
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.runner import dvc_drives, note_outputs
from dagrpo.tracking.variations import TRY
from dagrpo.utils.console import say
from dagrpo.utils.files import atomic_file, read_json
from dagrpo.utils.provenance import TOPS, provenances_of

COPY = STATES / "dvc.lock"  # the copy from the beginning of the latest stage of a `dvc repro`


def require_readable_lock() -> None:
    """Raise UserError for a damaged dvc.lock, after noting what it recorded, so that a later run records it again.

    One that is cut short is replaced by the copy that a stage of a `dvc repro` keeps, if that copy is intact.
    """
    trouble = _trouble(LOCK)
    if trouble is None:
        if dvc_drives() and LOCK.is_file():
            _copy(LOCK, COPY)
        return
    _note_all_that_was_made()
    if trouble == CUT_SHORT and COPY.is_file() and _trouble(COPY) is None:
        _copy(COPY, LOCK)
        say(f"{LOCK} was cut short, as a DVC that is killed leaves it: it is again as it was before that was written.")
        return
    raise UserError(
        f"{LOCK} is damaged ({trouble}): restore it with `git checkout HEAD -- {LOCK}`, or delete it; the same command then "
        "records in it what has been made here."
    )


def _copy(source: Path, destination: Path) -> None:
    with atomic_file(destination) as writing:
        shutil.copyfile(source, writing)


def _trouble(path: Path) -> str | None:
    try:
        return fault_of(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _note_all_that_was_made() -> None:
    for provenance, record in _all_records():
        note_outputs([*record["outputs"], str(provenance)], provenance, record)


def _all_records() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every readable provenance.json of every experiment. Override runs are not recorded in DVC."""
    experiments = {path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir() and TRY not in path.name}
    for provenance in (path for experiment in sorted(experiments) for path in provenances_of(experiment)):
        try:
            record = read_json(provenance)
            if record["experiment"] == provenance.parts[1]:
                yield provenance, record
        except UserError:  # damaged: its stage is about to run again
            continue
