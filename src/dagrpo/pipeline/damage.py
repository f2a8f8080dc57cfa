"""Damaged inputs, reported and marked for recomputation by the next run.

Snakemake and DVC compare times and sizes, and would treat a damaged file as up to date. This looks for the cause after a stage
has failed; `execution.record` and the readers of checkpoints check inputs before the work.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.pipeline.record import STATES, broken_file, inputs_of, makers_of
from dagrpo.utils.files import digest_of, write_json
from dagrpo.utils.manifest import fault_of

MARKS = STATES / "damaged"


def damage_found(options: argparse.Namespace) -> str | None:
    """Return an error message about the first damaged input of a failed stage; None if all are intact.

    Marks every damaged input, and sets its time to now, so that DVC looks into it. Reads all inputs.
    """
    found = list(_damaged(options))
    for file, provenance in found:
        with suppress(OSError):  # on a full disk the message must still be shown
            write_json(_mark_of(options.experiment, provenance), {"file": str(file), "provenance": str(provenance)})
            os.utime(file)
    return _sentence(*found[0]) if found else None


def is_marked_damaged(experiment: str, provenance: Path) -> bool:
    """Return True if an output of the execution behind a provenance.json was found damaged."""
    return _mark_of(experiment, provenance).exists()


def unmark_damaged(experiment: str) -> None:
    """Remove the marks, once Snakemake's records have these jobs as not done."""
    for note in (MARKS / experiment).glob("*.json"):
        note.unlink()


def _damaged(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Yield each damaged input, or the damaged file of its folder, with the provenance.json that has its digest."""
    inputs = [path for paths in inputs_of(options).values() for path in paths]
    for path, (digest, provenance) in makers_of(options.experiment, inputs).items():
        file = _broken_file(path, digest)
        if file is not None:
            yield file, provenance


def _broken_file(path: Path, digest: str) -> Path | None:
    try:
        return broken_file(path, digest, fault_of)
    except (OSError, UserError):  # unreadable
        return path


def _sentence(file: Path, provenance: Path) -> str:
    return (
        f"{file} is damaged, or was changed after it was made ({provenance} says so): started again, the same command makes "
        "it anew; if the change is yours, copy it away first."
    )


def _mark_of(experiment: str, provenance: Path) -> Path:
    return MARKS / experiment / f"{digest_of(str(provenance))[:16]}.json"
