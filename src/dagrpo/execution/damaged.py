"""Inputs that are not what their producers have written: told in a sentence, and noted, so that the next run makes them anew.

Snakemake and DVC go by times and sizes, and would take a damaged file for made. Not a check before the work, which is that
of `execution.record` and of whoever opens a checkpoint: this looks for the cause when a stage has failed.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.execution.record import STATES, inputs_of, makers_of
from dagrpo.execution.whole import broken_file
from dagrpo.files import digest_of, write_json

NOTES = STATES / "damaged"


def tell_damage(options: argparse.Namespace) -> str | None:
    """The sentence about the first damaged input of a stage that has failed; None where all are whole.

    Every one of them is noted, and its time set to now, so that DVC looks into it. Reads all inputs.
    """
    found = list(_damaged(options))
    for file, provenance in found:
        with suppress(OSError):  # on a full disk the sentence is still to be told
            write_json(_note(options.experiment, provenance), {"file": str(file), "provenance": str(provenance)})
            os.utime(file)
    return _sentence(*found[0]) if found else None


def is_noted(experiment: str, provenance: Path) -> bool:
    """Whether an output of the execution behind a provenance.json was found to be damaged."""
    return _note(experiment, provenance).exists()


def forget_damage(experiment: str) -> None:
    """Remove the notes: whoever runs the stages knows."""
    for note in (NOTES / experiment).glob("*.json"):
        note.unlink()


def _damaged(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Each damaged input, or the file of its folder that is, with the provenance.json that says so."""
    inputs = [path for paths in inputs_of(options).values() for path in paths]
    for path, (digest, provenance) in makers_of(options.experiment, inputs).items():
        file = _broken_file(path, digest)
        if file is not None:
            yield file, provenance


def _broken_file(path: Path, digest: str) -> Path | None:
    try:
        return broken_file(path, digest)
    except (OSError, UserError):  # it cannot be read
        return path


def _sentence(file: Path, provenance: Path) -> str:
    return (
        f"{file} is damaged, or was changed after it was made ({provenance} says so): started again, the same command makes "
        "it anew; if the change is yours, copy it away first."
    )


def _note(experiment: str, provenance: Path) -> Path:
    return NOTES / experiment / f"{digest_of(str(provenance))[:16]}.json"
