"""Resumable state of a run: trained weights, optimizer, finished steps.

It is not an output, and never a pickle. Frozen weights, beside an adapter or of a frozen tower, are not saved: they stay those of
the checkpoint that the run began with, whose tensor digest the state names.

One folder per saved step, written under a temporary name and renamed, so that a killed run finds the last complete one. The
oldest is removed before the next is written: never more than two are on the disk. A state belongs to all parameters that change
a result; it does not depend on the number of steps, on micro-batches or on the number of ranks: a run may resume with other
values of these.

Every file is checked before a run resumes from it. A damaged state is set aside under another name, and the run resumes
from the one before, or starts from its first step.
"""

import itertools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.checksummed_json import Damaged, read_checksummed
from dagrpo.utils.console import say
from dagrpo.utils.files import remove
from dagrpo.utils.locks import exclusive_access
from dagrpo.utils.manifest import FileEntry, fault_of

DESCRIPTION = "state.json"
_NAME = re.compile(r"step_([0-9]{5,})")
_SET_ASIDE = "damaged_"
READ = (".safetensors", ".parquet")  # suffixes of the files that a run finds in a state by listing its folder
_UNFINISHED = ".part"  # of a folder that is being written (see `atomic_folder`) or removed
THREADS = 4  # hashing waits for the disk, and leaves Python free
Recorded = Callable[[int], None]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """State on disk. Example: SavedState(folder=Path(".state/ab12/step_00040"), step=40): 40 steps are finished."""

    folder: Path
    step: int

    @property
    def notes(self) -> Any:
        """Return the notes that were given to `save`."""
        return read_checksummed(self.folder / DESCRIPTION)["notes"]

    @property
    def base(self) -> str | None:
        """Return the tensor digest of the checkpoint that the run began with; None if it is not recorded."""
        digest: str | None = read_checksummed(self.folder / DESCRIPTION).get("base")
        return digest


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the state for one trainer. Raises UserError if another process holds it for longer than a minute."""
    with exclusive_access(root, root / "lock"):
        yield


def at(root: Path, step: int) -> SavedState:
    """Return the state after `step` finished steps."""
    return SavedState(folder=root / f"step_{step:05d}", step=step)


def nothing_recorded(step: int) -> None:
    """Do nothing: the default of a run that keeps no records beside its states."""


def latest(root: Path, at_most: int, recorded: Recorded = nothing_recorded) -> SavedState | None:
    """Return the newest intact state after at most `at_most` steps, or None for a fresh start.

    `recorded(step)` raises Damaged if the records beside a state are damaged up to its step. States that cannot be
    resumed from are set aside and reported, and what a killed run has left of one is removed.
    """
    _remove_unfinished(root)
    damages: list[tuple[SavedState, Damaged]] = []
    whole = None
    for saved in reversed(_saved(root, at_most)):
        try:
            _require_whole(saved)
            recorded(saved.step)
        except Damaged as damage:
            damages.append((saved, damage))
        else:
            whole = saved
            break
    for what, rejected in itertools.groupby(damages, lambda each: each[1].what):
        _set_aside([saved for saved, _ in rejected], what, whole)
    return whole


def nearest(root: Path, at_most: int) -> SavedState | None:
    """Return the newest intact state after at most `at_most` steps, for readers: no state is set aside."""
    for saved in reversed(_saved(root, at_most)):
        with suppress(Damaged):
            _require_whole(saved)
            return saved
    return None


def last_step(root: Path, at_most: int) -> int:
    """Return the step of the newest state, intact or not, after at most `at_most` steps; 0 without any."""
    return max((saved.step for saved in _saved(root, at_most)), default=0)


def named(folder: Path) -> SavedState:
    """Return the state of a folder that the user names, such as .state/ab12/step_00040. Raises UserError if it is invalid or damaged."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        raise UserError(f"{folder} is no saved state: name a folder such as .state/<run>/step_00040.")
    saved = SavedState(folder=folder, step=int(match[1]))
    try:
        _require_whole(saved)
    except Damaged as damage:
        raise UserError(f"{folder} is no whole state, as {damage.what}: name another one.") from None
    return saved


def _require_whole(saved: SavedState) -> None:
    path = saved.folder / DESCRIPTION
    state = read_checksummed(path)
    if state["step"] != saved.step:
        raise Damaged(path, f"is of step {state['step']}")
    require_whole(saved.folder, state["files"], READ)


def _set_aside(states: Sequence[SavedState], fault: str, whole: SavedState | None) -> None:
    """Rename unusable states, newest first, and report it: their files stay for inspection, and they no longer count as states."""
    newest, *others = [_rename(saved) for saved in states]
    which = f"The state of step {states[0].step} cannot be used, as {fault}: it is kept as {newest}"
    if others:
        which = (
            f"The state of step {states[0].step} and {len(others)} before it cannot be used, as {fault}: "
            f"they are kept as {newest} and the like"
        )
    then = "the run starts from its first step" if whole is None else f"the run goes on from step {whole.step}"
    sentence = f"{which}, and {then}."
    logger.warning(sentence)
    say(sentence)


def _rename(saved: SavedState) -> Path:
    names = (f"{_SET_ASIDE}{saved.folder.name}_{number}" for number in itertools.count(1))
    aside = next(path for path in map(saved.folder.with_name, names) if not os.path.lexists(path))
    saved.folder.rename(aside)
    return aside


def prune(root: Path, step: int, keep: int) -> None:
    """Remove all states up to `step` but the newest `keep`. Later ones belong to a longer run with the same results, and stay.

    No state may be being written.
    """
    oldest_first = _saved(root, step)
    for saved in oldest_first[: max(len(oldest_first) - keep, 0)]:
        # Rename first: a half-removed state would count as a damaged one.
        saved.folder.rename(root / f".{saved.folder.name}.pruned{_UNFINISHED}")
    _remove_unfinished(root)


def _remove_unfinished(root: Path) -> None:
    for folder in root.glob(f".step_*{_UNFINISHED}"):
        remove(folder)


def _saved(root: Path, at_most: int) -> list[SavedState]:
    """Return saved states up to step `at_most`, intact or not, oldest first."""
    names = {path.name: _NAME.fullmatch(path.name) for path in root.glob("step_*") if path.is_dir()}
    found = (at(root, int(match[1])) for match in names.values() if match)
    ours = [saved for saved in found if saved.folder.name in names and 0 < saved.step <= at_most]
    return sorted({saved.step: saved for saved in ours}.values(), key=lambda saved: saved.step)


def require_whole(folder: Path, entries: Mapping[str, Any], suffixes: Collection[str]) -> None:
    """Check that the files below a folder with these suffixes are those listed, with unchanged bytes.

    `entries`: per name, the fields of a FileEntry. Raises Damaged, which names the first one that is missing, truncated, changed
    or not listed.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and str(path.relative_to(folder)) not in entries:
            raise Damaged(path, "does not belong there")
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(require_whole_file, map(folder.joinpath, entries), entries.values()))


def require_whole_file(
    path: Path, entry: Mapping[str, Any], fault: Callable[[Path, FileEntry], str | None] = fault_of
) -> None:
    """Check one file. Raises Damaged if it is missing, truncated or changed; with another `fault`, if that finds one."""
    if found := fault(path, FileEntry(**entry)):
        raise Damaged(path, found)
