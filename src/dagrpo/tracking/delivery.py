"""Delivery: journals are brought into MLflow in passes, and between passes nothing runs.

Who asks for a pass: the end of a workflow (`settle`), `make ui`, and `follow`, a child of a stage that works for longer
than a few seconds, which makes its curves visible while it works. A file lock lets one process deliver at a time. What
cannot be delivered stays in its journal for the next pass. MLflow, whose import takes seconds, is imported only when
a journal waits.

No pass raises: whatever is wrong with a journal, a server, a database or a disk costs the record, and no result.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dagrpo.errors import UserError
from dagrpo.files import open_to_append, read_regular, write_text
from dagrpo.redaction import hide_secrets_in_streams, hide_secrets_in_tracebacks
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
    set_aside_damaged,
    size_of,
    start_of,
)
from dagrpo.tracking.store import complete, hide_password, open_client, refuse_todays_credentials
from dagrpo.visible import one_line

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SECONDS_BETWEEN_PASSES = 5.0
SECONDS_OF_A_PASS = 120.0
LONGEST_WAIT = 64  # pauses between two passes that fail
ABANDONED_SECONDS = 3600.0
GRACE_SECONDS = 600.0  # that a pass at work gets beyond its time, before its server is taken for one that hangs
LONGEST_TROUBLE = 400  # characters
MAX_LOG_BYTES = 1 << 20
LOCK = "delivery.lock"
LOG = "delivery.log"
TROUBLE_FILE = "trouble.txt"
logger = logging.getLogger(__name__)


def settle(root: Path, timeout_s: float = SECONDS_OF_A_PASS) -> bool:
    """Deliver everything that waits, once; False when a stage that has ended is not in MLflow as a whole afterwards.

    A journal that cannot be read is set aside, with a warning.
    """
    set_aside_damaged(root)
    _pass(root, timeout_s)
    return not any(_has_ended(folder) for folder in _waiting(root))


def _pass(root: Path, timeout_s: float) -> None:
    """In a thread that is left behind when it does not end: a server may take its time for every byte of an answer."""
    if not _waiting(root):
        return
    work = threading.Thread(target=_deliver_alone, args=(root, timeout_s), daemon=True, name="delivery")
    work.start()
    work.join(timeout_s + GRACE_SECONDS)
    if work.is_alive():
        _tell(root, f"what was asked of MLflow has not been answered for {timeout_s + GRACE_SECONDS:.0f} seconds")


def _deliver_alone(root: Path, timeout_s: float) -> None:
    """While no other process delivers."""
    deadline = time.monotonic() + timeout_s
    try:
        with FileLock(root / FOLDER / LOCK).acquire(timeout=timeout_s):
            _deliver(root, deadline)
    except Timeout:
        _tell(root, f"another process has been delivering runs to MLflow for {timeout_s:.0f} seconds")
    except Exception as error:  # noqa: BLE001  the border between a record and the results: see above
        _tell(root, hide_password(f"{type(error).__name__}: {error}", root))


def seconds_waiting(root: Path) -> float:
    """How long the oldest record of a stage that has ended has been waiting for delivery; 0 when none is."""
    ended = next((folder for folder in _waiting(root) if _has_ended(folder)), None)
    return 0.0 if ended is None else (now_ms() - last_sign_of_life(ended)) / 1000


def last_trouble(root: Path) -> str:
    """Why the last pass could not deliver something; empty when it delivered everything."""
    path = root / FOLDER / TROUBLE_FILE
    try:
        text = read_regular(path, MAX_LOG_BYTES).decode(errors="replace")
        return one_line(text, 2 * LONGEST_TROUBLE)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"


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
    with open_to_append(log) as output:  # no pipe of ours: whoever waits for our output must not wait for this process
        subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def follow(folder: Path, pause_s: float = SECONDS_BETWEEN_PASSES) -> None:
    """Deliver again and again until the stage of this journal has ended."""
    root = folder.parents[len(FOLDER.parts)]
    pauses = 1
    while folder.exists():
        was_last = _is_over(folder)
        _pass(root, SECONDS_OF_A_PASS)  # what is damaged is left to those whose warnings somebody sees
        if was_last:
            return
        pauses = min(2 * pauses, LONGEST_WAIT) if last_trouble(root) else 1
        _pause(folder, pauses, pause_s)


def _pause(folder: Path, pauses: int, pause_s: float) -> None:
    """Longer after each failure, since a server that is down writes a traceback every time; the stage's end cuts it short."""
    for _ in range(pauses):
        time.sleep(pause_s)
        if _is_over(folder):
            return


def _deliver(root: Path, deadline: float) -> None:
    """One pass over all journals, of running stages, too. The caller holds the lock."""
    _remove_abandoned(root)
    superseded = _superseded(journals(root))
    troubles: list[str] = []
    stores = Stores()
    for folder in _waiting(root):
        if time.monotonic() > deadline:
            troubles.append("there was no time left")
            break
        if trouble := _deliver_one(root, folder, stores, superseded=folder in superseded):
            troubles.append(trouble)
    if troubles:
        _tell(root, troubles[0])
    else:
        (root / FOLDER / TROUBLE_FILE).unlink(missing_ok=True)


def _tell(root: Path, trouble: str) -> None:
    """Keep the reason for whoever tells it at the end of a run."""
    waiting = f"no result is lost, and the next run or `dagrpo ui` delivers what waits (see {FOLDER / LOG})."
    sentence = f"{one_line(trouble, LONGEST_TROUBLE)}; {waiting}"
    try:
        write_text(root / FOLDER / TROUBLE_FILE, f"{sentence}\n")
    except OSError as error:  # a full disk is often the reason itself
        logger.warning("%s (%s cannot be written: %s)", sentence, FOLDER / TROUBLE_FILE, error.strerror)


class Stores:
    """The databases and servers of one pass. One that takes nothing now is asked once."""

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}  # why it takes nothing, by address
        self._clients: dict[str, MlflowClient] = {}

    def client(self, uri: str) -> "MlflowClient | None":
        """None: it is in trouble."""
        from dagrpo.tracking.trouble import trouble_of_store

        if uri not in self._clients and uri not in self.troubles:
            try:
                refuse_todays_credentials(uri)
                self._clients[uri] = open_client(uri)
            except UserError as refusal:
                self.troubles[uri] = str(refusal)
            except Exception as error:  # the border: a server may answer anything
                self.troubles[uri] = trouble_of_store(error, uri)
                raise
        return self._clients.get(uri)


def _deliver_one(root: Path, folder: Path, stores: Stores, *, superseded: bool) -> str:
    """Bring over what is new in one journal, discard it when it is complete. Returns why that failed, or nothing."""
    from dagrpo.tracking.recorder import Recorder
    from dagrpo.tracking.trouble import is_of_store, trouble_of_store, trouble_with

    uri = ""
    try:
        uri = complete(start_of(folder)["uri"], root)
        client = stores.client(uri)
        if client is not None and Recorder(folder, client).advance(superseded=superseded):
            discard(folder)
    except Exception as error:  # noqa: BLE001  the border between a record and the results: see above
        forget_progress(folder)  # what is delivered twice changes nothing, and its run may have been removed
        _log(folder, hide_password(traceback.format_exc(), root))
        if is_of_store(error, uri):
            stores.troubles.setdefault(uri, trouble_of_store(error, uri))
        return hide_password(stores.troubles.get(uri) or f"{folder}: {trouble_with(error)}", root)
    return hide_password(stores.troubles.get(uri, ""), root)


def _log(folder: Path, text: str) -> None:
    logger.info("%s: not delivered: see %s", folder.name, FOLDER / LOG)
    with suppress(OSError), open_to_append(folder.parent / LOG) as log:  # the reason is told elsewhere
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {folder.name}\n{text}\n".encode(errors="backslashreplace"))


def _waiting(root: Path) -> list[Path]:
    """Journals of which something is not in MLflow, oldest first."""
    folders = journals(root)
    superseded = _superseded(folders)
    return [folder for folder in folders if folder in superseded or _has_news(folder)]


def _has_news(folder: Path) -> bool:
    try:
        return _has_ended(folder) or size_of(folder) > delivered_bytes(folder)
    except OSError:  # delivered by another process meanwhile
        return False


def _has_ended(folder: Path) -> bool:
    try:
        return has_end(folder) or Process(**start_of(folder)["process"]).is_gone
    except (OSError, UserError):  # delivered by another process meanwhile, or damaged
        return False


def _is_over(folder: Path) -> bool:
    """Whether there is nothing more to come: also where the journal is gone, or damaged."""
    return _has_ended(folder) or folder not in journals(folder.parents[len(FOLDER.parts)])


def _superseded(folders: Sequence[Path]) -> set[Path]:
    """Journals of executions whose outputs are being made anew: the workflow never runs two of them at once."""
    newest: dict[str, tuple[int, Path]] = {}
    for folder in folders:
        try:
            start = start_of(folder)
        except (OSError, UserError):  # delivered, or damaged, by another process meanwhile
            continue
        who = identity(start)
        newest[who] = max(newest.get(who, (0, folder)), (start["time"], folder))
    keep = {folder for _, folder in newest.values()}
    return {folder for folder in folders if folder not in keep}


def _remove_abandoned(root: Path) -> None:
    """Journals that were not yet, or no longer, visible when their process was killed."""
    for folder in (root / FOLDER).glob(".*-*"):
        with suppress(FileNotFoundError):  # it has become visible meanwhile
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path) -> None:
    """`follow`, as the process that `start_following` starts. Its streams lead to the log, also for what MLflow prints."""
    os.nice(10)  # the stages come first
    hide_secrets_in_tracebacks()
    hide_secrets_in_streams()
    follow(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
