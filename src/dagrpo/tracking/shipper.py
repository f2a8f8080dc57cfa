"""The background process that brings journals into MLflow: `python -m dagrpo.tracking.shipper`.

At most one runs per project. It pays MLflow's import once for many stages, follows the journals of running stages, and
ends when it has had nothing to do for a while. What it cannot bring over stays in its journal for the next one.
"""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dagrpo.files import write_text
from dagrpo.tracking.environment import Process
from dagrpo.tracking.journal import FOLDER, discard, has_end, identity, journals, start_of
from dagrpo.tracking.store import open_client

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from dagrpo.tracking.recorder import Recorder

LINGER_SECONDS = 30.0  # a workflow starts its next stage sooner than this
POLL_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # pauses after failures; then an ended run is left to the next one
ABANDONED_SECONDS = 3600.0
MAX_LOG_BYTES = 1 << 20
LOG = "shipper.log"
TROUBLE_FILE = "trouble.txt"
logger = logging.getLogger(__name__)


def ensure_shipper(root: Path) -> None:
    """Start a shipper in the background unless one runs. Failing to is logged: the journal waits for the next one."""
    try:
        with _lock(root).acquire(timeout=0):
            pass
        _start(root)
    except Timeout:
        return
    except OSError as error:
        logger.warning("runs are not sent to MLflow yet: %s", error)


def last_trouble(root: Path) -> str:
    """Why something could not be brought into MLflow; empty when everything could."""
    path = root / FOLDER / TROUBLE_FILE
    return path.read_text().strip() if path.exists() else ""


def settle(root: Path, timeout_s: float = 120.0) -> bool:
    """Wait until every stage that has ended is in MLflow, working on it where no shipper does. False: not all are."""
    deadline = time.monotonic() + timeout_s
    while (waiting := _ended(root)) and time.monotonic() < deadline:
        try:
            with _lock(root).acquire(timeout=ASK_AGAIN_SECONDS):
                return Shipper(root).send_all(waiting, deadline)
        except Timeout:
            continue
    return not _ended(root)


class Shipper:
    """Brings journals into MLflow. Its user holds the lock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clients: dict[str, MlflowClient] = {}
        self._recorders: dict[Path, Recorder] = {}
        self._failures: dict[Path, int] = {}
        self._try_again: dict[Path, float] = {}  # monotonic seconds

    def follow(self, linger_s: float) -> None:
        """Send what there is and what comes, until there has been nothing to do for `linger_s` seconds."""
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < linger_s:
            waiting = self._accepted(journals(self._root))
            if waiting:
                self.send(waiting)
                idle_since = time.monotonic()
            time.sleep(POLL_SECONDS)

    def send_all(self, folders: Sequence[Path], deadline: float) -> bool:
        """Send these journals, of stages that have ended; False when one could not be brought over in time."""
        while (waiting := self._accepted(folders)) and time.monotonic() < deadline:
            self.send(waiting)
            time.sleep(ASK_AGAIN_SECONDS)
        return not any(folder.exists() for folder in folders)

    def send(self, folders: Sequence[Path]) -> None:
        """One pass over journals: bring over what is new, discard what is complete."""
        from dagrpo.tracking.recorder import TROUBLE

        superseded = _superseded(journals(self._root))
        for folder in folders:
            if time.monotonic() < self._try_again.get(folder, 0.0):
                continue
            try:
                if self._recorder(folder).advance(folder in superseded):
                    self._forget(folder)
                    discard(folder)
            except TROUBLE as error:
                self._note(folder, error)
        if not self._failures:
            (self._root / FOLDER / TROUBLE_FILE).unlink(missing_ok=True)

    def has_work(self) -> bool:
        """True while there is a journal that this shipper has not given up."""
        return bool(self._accepted(journals(self._root)))

    def _accepted(self, folders: Sequence[Path]) -> list[Path]:
        return [folder for folder in folders if folder.exists() and not self._is_given_up(folder)]

    def _is_given_up(self, folder: Path) -> bool:
        return self._failures.get(folder, 0) > len(PATIENCE_SECONDS) and _has_ended(folder)

    def _recorder(self, folder: Path) -> "Recorder":
        from dagrpo.tracking.recorder import Recorder

        if folder not in self._recorders:
            uri = start_of(folder)["uri"]
            if uri not in self._clients:
                self._clients[uri] = open_client(uri)
            self._recorders[folder] = Recorder(folder, self._clients[uri])
        return self._recorders[folder]

    def _note(self, folder: Path, error: Exception) -> None:
        failures = self._failures.get(folder, 0)
        cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        logger.warning("%s: %s", folder.name, cause, exc_info=failures == 0)
        write_text(self._root / FOLDER / TROUBLE_FILE, f"{cause} (see {FOLDER / LOG})\n")
        self._forget(folder)
        self._failures[folder] = failures + 1
        self._try_again[folder] = time.monotonic() + PATIENCE_SECONDS[min(failures, len(PATIENCE_SECONDS) - 1)]

    def _forget(self, folder: Path) -> None:
        self._failures.pop(folder, None)
        recorder = self._recorders.pop(folder, None)
        if recorder is not None:
            recorder.stop()


def main() -> None:
    """Follow the journals of the project in the working directory. Ends at once when another shipper runs."""
    root = Path.cwd()
    os.nice(10)  # the stages come first
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _remove_abandoned(root)
    shipper = Shipper(root)
    while True:
        try:
            with _lock(root).acquire(timeout=0):
                shipper.follow(LINGER_SECONDS)
        except Timeout:
            return
        if not shipper.has_work():  # a stage may have seen the lock held just before it was released
            return


def _lock(root: Path) -> FileLock:
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / "shipper.lock")


def _start(root: Path) -> None:
    log = root / FOLDER / LOG
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.unlink()
    command = (sys.executable, "-m", "dagrpo.tracking.shipper")
    with log.open("ab") as output:  # no pipe of ours: whoever waits for our output must not wait for the shipper
        subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def _ended(root: Path) -> list[Path]:
    folders = journals(root)
    superseded = _superseded(folders)
    return [folder for folder in folders if folder in superseded or _has_ended(folder)]


def _has_ended(folder: Path) -> bool:
    return has_end(folder) or Process(**start_of(folder)["process"]).is_gone


def _superseded(folders: Sequence[Path]) -> set[Path]:
    """Journals of executions whose outputs are being made anew: the workflow never runs two of them at once."""
    newest: dict[str, tuple[int, Path]] = {}
    for folder in folders:
        start = start_of(folder)
        who = identity(start["record"])
        newest[who] = max(newest.get(who, (0, folder)), (start["time"], folder))
    keep = {folder for _, folder in newest.values()}
    return {folder for folder in folders if folder not in keep}


def _remove_abandoned(root: Path) -> None:
    """Journals that were not yet, or no longer, visible when their process was killed."""
    for folder in (root / FOLDER).glob(".*-*"):
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
