"""Calls of DVC as a library.

Tested with 3.67.1. Outputs are recorded as `dvc commit` records them, but without its re-linking, which rewrites files, and without
reading dvc.lock: DVC takes seconds for a megabyte of it, and only the entries of today's stages are written. dvc.lock is replaced as a
whole.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.failures import about_room, no_room, sentence_of
from dagrpo.utils.files import atomic_file

HEAD = "schema: '2.0'\nstages:\n"
CUT_SHORT = "it is cut short"
_START = re.compile(r"^(?=  [^ ])", re.MULTILINE)
_ENTRY = re.compile(r"  [^ ?#\n-][^\n]*:\n(?:    [^\n]*\n)+")
_NEITHER = re.compile(r"^(?! |#|\w+:|\n)", re.MULTILINE)  # the start of a line in no entry and no key of the file


def fault_of(text: bytes) -> str | None:
    """Return what a merge, a full disk or a kill has done to a dvc.lock; None if its lines are as DVC writes them."""
    if not text.endswith(b"\n"):
        return CUT_SHORT
    try:
        lines = text.decode()
    except UnicodeDecodeError:
        return "it is not text"
    strange = _NEITHER.search(lines)
    if strange is not None and strange.start() < len(lines):
        return f"it is not YAML: line {lines.count(chr(10), 0, strange.start()) + 1}"
    return None if re.search(r"^schema:", lines, re.MULTILINE) else "it is not what DVC writes"


def entries_of(text: str) -> dict[str, str] | None:
    """Return the lines of each stage's entry by the first one; None for a dvc.lock that has anything else in it."""
    if not text.startswith(HEAD):
        return None
    before, *entries = _START.split(text[len(HEAD) :])
    if before or not all(map(_ENTRY.fullmatch, entries)):
        return None
    return {entry.partition("\n")[0]: entry for entry in entries}


def text_of(entries: Mapping[str, str]) -> str:
    """Return the text of a dvc.lock with these entries."""
    return HEAD + "".join(entries.values())


LOCK = Path("dvc.lock")
DVC_FOLDER = Path(".dvc")
TRANSFERS = logging.getLogger("dvc_data.hashfile.transfer")


def lock_of_dvc(*, wait: bool) -> Callable[[], None] | None:
    """Take DVC's own lock, which keeps every other `dvc` command out of this folder; return what releases it.

    Returns None if another process has it, unless this one waits for it. DVC releases it while it runs a stage.
    """
    from dvc.lock import LockError, make_lock
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # DVC's lock has a bar, whose thread cannot be started any more when the process ends
    temporary = DVC_FOLDER.resolve() / "tmp"
    temporary.mkdir(exist_ok=True)
    lock = make_lock(str(temporary / "lock"), tmp_dir=str(temporary), wait=wait)
    try:
        lock.lock()
    except LockError:
        return None
    return lock.unlock  # type: ignore[no-any-return]


def keep_other_experiments() -> None:
    """Make DVC forget each output as soon as it has put it in place.

    `dvc checkout`, a part of `dvc pull` and `dvc exp run`, removes all remembered outputs that no stage of today's params.yaml has: those
    of every other experiment. DVC has no setting against that.
    """
    from dvc.repo import Repo

    with Repo(".") as repo:
        _forget_links(repo)


def _forget_links(repo: Any) -> None:
    repo.state.links.clear()
    repo.state.links._sql(
        "CREATE TRIGGER IF NOT EXISTS forget AFTER INSERT ON Cache BEGIN DELETE FROM Cache WHERE rowid = NEW.rowid; END"
    )


def process_in_lock_of_dvc() -> int:
    """Return the number of the process that has written DVC's lock. Raises ProcessLookupError if the file names none."""
    try:
        return int((DVC_FOLDER / "tmp" / "lock").read_text())
    except (OSError, ValueError):
        raise ProcessLookupError from None


def record_outputs(is_wanted: Callable[[str, set[Path]], bool]) -> dict[str, list[str]]:
    """Store the outputs of DVC's stages in its cache, and write dvc.lock once. The caller holds `lock_of_dvc`.

    `is_wanted` gets a stage's address and its outs. Returns the addresses of stages that could not be stored, by reason; with the
    reason alone if nothing could be read or written.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockNoop
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)  # it logs that it writes dvc.lock
    try:
        with Repo(".") as repo:
            repo.lock = LockNoop()  # this process holds DVC's lock already, by another object
            _forget_links(repo)
            with repo.lock:
                return _record(repo, is_wanted)
    except DvcException as error:  # dvc.lock or a file in .dvc is damaged
        return {str(error): []}
    except OSError as error:  # dvc.lock cannot be written
        sentence = sentence_of(error)
        if sentence is None:
            raise
        return {sentence: []}


def _record(repo: Any, is_wanted: Callable[[str, set[Path]], bool]) -> dict[str, list[str]]:
    from dvc.dvcfile import ProjectFile
    from dvc.exceptions import DvcException

    recorded, failures = [], dict[str, list[str]]()
    file = ProjectFile(repo, str(Path(repo.root_dir, "dvc.yaml")))
    file.__dict__["lockfile_contents"] = {}  # as if dvc.lock had none of them: a record needs no earlier one
    for stage in file.stages.values():
        if not is_wanted(stage.addressing, {Path(str(out.def_path)) for out in stage.outs}):
            continue
        try:
            _store(stage)
            recorded.append(stage)
        except (DvcException, UserError) as error:  # a failure of one stage must not stop the others
            failures.setdefault(str(error), []).append(stage.addressing)
    if recorded:
        _write_lock(repo, recorded)
    return failures


def _store(stage: Any) -> None:
    """Put the outputs of DVC's stage into its cache. Raises UserError if the cache lacks any of them afterwards.

    If a file cannot be stored, mostly for lack of space, DVC logs it and continues as if it had been.
    """
    with _logged_errors() as errors:
        try:
            stage.save()
            stage.commit(relink=False)
            ended_well = True
        except OSError as error:  # a full disk, or a cache that is not a folder
            errors.append(error)
            ended_well = False
    with suppress(OSError):  # the cache is unreadable
        if ended_well and not any(output.use_cache and output.changed_cache() for output in stage.outs):
            return
    cache = Path(stage.repo.cache.local.path)
    first = next((each for each in errors if isinstance(each, OSError)), None)
    if first is not None and no_room(first):
        raise UserError(about_room(OSError(first.errno, first.strerror, str(cache))))
    reason = (first and first.strerror) or "no reason given"
    raise UserError(
        f"{cache} does not take what was made ({reason}): see that it is a folder that you can write to, then run again."
    )


@contextmanager
def _logged_errors() -> Iterator[list[BaseException]]:
    """Collect the errors that DVC would log, a line or more for each file."""
    errors: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            errors.append(record.exc_info[1])
        return False

    TRANSFERS.addFilter(collect)
    try:
        yield errors
    finally:
        TRANSFERS.removeFilter(collect)


def _write_lock(repo: Any, stages: Sequence[Any]) -> None:
    """Write the state of DVC's stages into dvc.lock atomically: a kill leaves the old or the new file."""
    from dvc.dvcfile import Lockfile

    text = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    entries = entries_of(text)
    with atomic_file(LOCK) as writing:
        if text and entries is None:  # not only stages, or written by hand: DVC's reader and writer keep the rest
            shutil.copyfile(LOCK, writing)
        Lockfile(repo, str(writing)).dump_stages(stages)
        if entries is not None:
            new = entries_of(writing.read_text(encoding="utf-8"))
            assert new is not None, "DVC writes entries in another form than tests/pipeline/dvc/test_private.py says"
            writing.write_text(text_of(entries | new), encoding="utf-8")


if __name__ == "__main__":
    keep_other_experiments()
