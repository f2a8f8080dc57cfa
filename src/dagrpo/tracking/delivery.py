"""Delivery: journals are brought into MLflow in passes, and between passes nothing runs.

Who asks for a pass: the end of a workflow (`settle`), `make ui`, and `follow`, a child of a stage that works for longer
than a few seconds, which makes its curves visible while it works. A file lock lets one process deliver at a time. What
cannot be delivered stays in its journal for the next pass. MLflow, whose import takes seconds, is imported only when
a journal waits.
"""

import logging
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from dagrpo.files import write_text
from dagrpo.tracking.environment import Process
from dagrpo.tracking.journal import (
    FOLDER,
    delivered_bytes,
    discard,
    forget_progress,
    has_end,
    identity,
    journals,
    last_sign_of_life,
    now_ms,
    size_of,
    start_of,
)
from dagrpo.tracking.store import complete, hide_password, open_client

SECONDS_BETWEEN_PASSES = 5.0
LONGEST_WAIT = 64  # pauses between two passes that fail
ABANDONED_SECONDS = 3600.0
MAX_LOG_BYTES = 1 << 20
LOCK = "delivery.lock"
LOG = "delivery.log"
TROUBLE_FILE = "trouble.txt"
logger = logging.getLogger(__name__)


def settle(root: Path, timeout_s: float = 120.0) -> bool:
    """Deliver everything that waits, once; False when a stage that has ended is not in MLflow as a whole afterwards."""
    deadline = time.monotonic() + timeout_s
    if _waiting(root):
        try:
            with FileLock(root / FOLDER / LOCK).acquire(timeout=timeout_s):
                _deliver(root, deadline)
        except Timeout:
            logger.warning("another process has been delivering runs to MLflow for %.0f seconds", timeout_s)
    return not any(_has_ended(folder) for folder in _waiting(root))


def seconds_waiting(root: Path) -> float:
    """How long the oldest record of a stage that has ended has been waiting for delivery; 0 when none is."""
    ended = next((folder for folder in _waiting(root) if _has_ended(folder)), None)
    return 0.0 if ended is None else (now_ms() - last_sign_of_life(ended)) / 1000


def last_trouble(root: Path) -> str:
    """Why the last pass could not deliver something; empty when it delivered everything."""
    path = root / FOLDER / TROUBLE_FILE
    return path.read_text().strip() if path.exists() else ""


def start_following(folder: Path) -> None:
    """Start a process that delivers until the stage of this journal has ended. OSError when none can be started.

    A process and not a thread: an import of MLflow in a thread doubles the duration of the trainer's steps while it
    lasts (docs/benchmarks.md).
    """
    root = folder.parents[len(FOLDER.parts)]
    log = root / FOLDER / LOG
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.unlink()
    command = (sys.executable, "-m", "dagrpo.tracking.delivery", str(folder))
    with log.open("ab") as output:  # no pipe of ours: whoever waits for our output must not wait for this process
        subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def follow(folder: Path, pause_s: float = SECONDS_BETWEEN_PASSES) -> None:
    """Deliver again and again until the stage of this journal has ended."""
    root = folder.parents[len(FOLDER.parts)]
    pauses = 1
    while folder.exists():
        was_last = _has_ended(folder)
        settle(root)
        if was_last:
            return
        pauses = min(2 * pauses, LONGEST_WAIT) if last_trouble(root) else 1
        _pause(folder, pauses, pause_s)


def _pause(folder: Path, pauses: int, pause_s: float) -> None:
    """Longer after each failure, since a server that is down writes a traceback every time; the stage's end cuts it short."""
    for _ in range(pauses):
        time.sleep(pause_s)
        if _has_ended(folder):
            return


def _deliver(root: Path, deadline: float) -> None:
    """One pass over all journals, of running stages, too. The caller holds the lock."""
    _remove_abandoned(root)
    superseded = _superseded(journals(root))
    troubles: list[str] = []
    servers: dict[str, str] = {}  # that take nothing now, and why: each is asked once in a pass
    for folder in _waiting(root):
        if time.monotonic() > deadline:
            troubles.append("there was no time left")
            break
        if trouble := _deliver_one(root, folder, servers, superseded=folder in superseded):
            troubles.append(trouble)
    if troubles:
        waiting = f"no result is lost, and the next run or `dagrpo ui` delivers what waits (see {FOLDER / LOG})."
        write_text(root / FOLDER / TROUBLE_FILE, f"{troubles[0]}; {waiting}\n")
    else:
        (root / FOLDER / TROUBLE_FILE).unlink(missing_ok=True)


def _deliver_one(root: Path, folder: Path, servers: dict[str, str], *, superseded: bool) -> str:
    """Bring over what is new in one journal, discard it when it is complete. Returns why that failed, or nothing."""
    from dagrpo.tracking.recorder import TROUBLE, Recorder
    from dagrpo.tracking.trouble import trouble_with, trouble_with_server

    uri = ""
    try:
        uri = complete(start_of(folder)["uri"], root)
        if uri in servers:
            return servers[uri]
        if Recorder(folder, open_client(uri)).advance(superseded=superseded):
            discard(folder)
    except TROUBLE as error:
        forget_progress(folder)  # what is delivered twice changes nothing, and its run may have been removed
        _log(folder, hide_password(traceback.format_exc(), root))
        trouble = hide_password(trouble_with(error, uri), root)
        if trouble_with_server(error, uri):
            servers[uri] = trouble
        return trouble
    return ""


def _log(folder: Path, text: str) -> None:
    logger.info("%s: not delivered: see %s", folder.name, FOLDER / LOG)
    with (folder.parent / LOG).open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {folder.name}\n{text}\n")


def _waiting(root: Path) -> list[Path]:
    """Journals of which something is not in MLflow, oldest first."""
    folders = journals(root)
    superseded = _superseded(folders)
    return [folder for folder in folders if folder in superseded or _has_news(folder)]


def _has_news(folder: Path) -> bool:
    try:
        return _has_ended(folder) or size_of(folder) > delivered_bytes(folder)
    except FileNotFoundError:  # delivered by another process meanwhile
        return False


def _has_ended(folder: Path) -> bool:
    try:
        return has_end(folder) or Process(**start_of(folder)["process"]).is_gone
    except FileNotFoundError:  # delivered by another process meanwhile
        return False


def _superseded(folders: Sequence[Path]) -> set[Path]:
    """Journals of executions whose outputs are being made anew: the workflow never runs two of them at once."""
    newest: dict[str, tuple[int, Path]] = {}
    for folder in folders:
        try:
            start = start_of(folder)
        except FileNotFoundError:  # delivered by another process meanwhile
            continue
        who = identity(start)
        newest[who] = max(newest.get(who, (0, folder)), (start["time"], folder))
    keep = {folder for _, folder in newest.values()}
    return {folder for folder in folders if folder not in keep}


def _remove_abandoned(root: Path) -> None:
    """Journals that were not yet, or no longer, visible when their process was killed."""
    for folder in (root / FOLDER).glob(".*-*"):
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.nice(10)  # the stages come first
    follow(Path(sys.argv[1]))
