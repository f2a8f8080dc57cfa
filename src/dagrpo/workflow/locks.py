"""Snakemake's lock after a SIGKILL: it names no owner, so a killed run would block every later one until --unlock.

A run notes its process when it starts and removes the note when it ends. A lock is released only where such a note says
that its owner ran on this machine and is gone: on a shared file system somebody else may be at work elsewhere.
"""

from dataclasses import asdict
from pathlib import Path

from dagrpo.errors import UserError
from dagrpo.files import read_json, write_json
from dagrpo.tracking.environment import Process

NOTE = Path(".state/snakemake.json")
LOCKS = Path(".snakemake/locks")


def note_owner(folder: Path) -> None:
    """Say that this process runs the workflow in `folder`."""
    write_json(folder / NOTE, asdict(Process.current()))


def forget_owner(folder: Path) -> None:
    """Say that nobody does any more."""
    (folder / NOTE).unlink(missing_ok=True)


def release_stale_lock(folder: Path) -> bool:
    """Remove the lock of a run that was killed on this machine; says whether it did. Any other lock stays."""
    locks, note = sorted((folder / LOCKS).glob("*.lock")), folder / NOTE
    owner = _owner(note)
    if not locks or owner is None or not owner.is_gone:
        return False
    noted = note.stat().st_mtime
    if any(lock.stat().st_mtime > noted for lock in locks):  # of a later run, which has not written its note yet
        return False
    for lock in locks:
        lock.unlink(missing_ok=True)
    forget_owner(folder)
    return True


def _owner(note: Path) -> Process | None:
    """Whom a note names; None where there is none, or one that says nothing."""
    try:
        return Process(**read_json(note))
    except (UserError, TypeError):
        return None
