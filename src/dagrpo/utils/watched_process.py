"""Process that cannot outlive its parent, nor leave children or files.

The process leads a separate process group, with a watcher in it that waits on a pipe from the parent. When the parent
ends, however it ends, the kernel closes the pipe, and the watcher kills the group. Unlike prctl(PR_SET_PDEATHSIG) this
covers grandchildren from their first moment, and does not mistake the end of a thread for the end of the parent.

SGLang and Python's multiprocessing choose the names of shared memory themselves and remove it on an orderly end only; a server is
killed. So the names are noted while it lives.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from dagrpo.utils.files import open_private_log

MEMORY = Path("/dev/shm")
NAMES = ("sglang_loads_", "sem.mp-")  # load reports of schedulers; semaphores
NOTE = "shared_memory"  # a file in the server's scratch folder: a path per line


def note(scratch: Path, group: int) -> None:
    """Add the shared memory that a group's processes have mapped to the note."""
    file = scratch / NOTE
    noted = set(_noted(file)) if file.exists() else set()
    mapped = {path for process in _members(group) for path in _mapped(process)}
    if mapped - noted:
        file.write_bytes(b"".join(bytes(path) + b"\n" for path in sorted(mapped | noted)))


def remove_noted(scratch: Path) -> None:
    """Remove the noted shared memory, if any."""
    with suppress(FileNotFoundError):  # never noted: the server was not ready
        for path in _noted(scratch / NOTE):
            with suppress(OSError, ValueError):  # ValueError: a NUL in a damaged note
                path.unlink(missing_ok=True)


def _noted(file: Path) -> Iterator[Path]:
    return filter(_is_shared, map(_path, file.read_bytes().split(b"\n")))


def _members(group: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):  # it has ended
            if os.getpgid(int(folder.name)) == group:
                yield int(folder.name)


def _mapped(process: int) -> Iterator[Path]:
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{process}/maps").read_bytes().split(b"\n"):
            yield from filter(_is_shared, map(_path, line.split(maxsplit=5)[5:]))


def _path(name: bytes) -> Path:
    """Return the path for a name of any bytes, which need not be text."""
    return Path(os.fsdecode(name))


def _is_shared(path: Path) -> bool:
    return path.parent == MEMORY and path.name.startswith(NAMES)


# The shell becomes the process; the subshell in the background is the watcher.
WATCHED = """
exec 3<&0 </dev/null
(
    read -r _ <&3
    for maps in /proc/[0-9]*/maps; do
        status=
        while read -r line; do status=$line; done 2>/dev/null <"${maps%maps}stat"  # to the last line: a name may have several
        set -- ${status##*) }  # state, parent, group: what comes after the name
        test "$3" = $$ && grep -hoE "[0-9] +/dev/shm/(sglang_loads_|sem[.]mp-)[^ /]*$" "$maps"
    done 2>/dev/null >>"$SCRATCH/shared_memory"
    test -f "$SCRATCH/shared_memory" && while read -r line; do rm -f -- "${line#"${line%%/dev/shm/*}"}"; done <"$SCRATCH/shared_memory"
    rm -rf -- "$SCRATCH"
    kill -KILL 0
) &
exec 3<&-
exec "$@"
"""
SECONDS_TO_DIE = 10.0


class WatchedProcess:
    """Running command, its log, and a scratch folder. The folder and the shared memory noted in it are removed at its end."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, scratch: Path) -> None:
        """Start it. stdout and stderr go to the log, which only the user may read."""
        self.log = log
        self.scratch = scratch
        with open_private_log(log) as output:
            output.truncate(0)
            self._start(command, {**environment, "SCRATCH": str(scratch)}, output)

    def _start(self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> None:
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WATCHED, "watched", *command],
                env=environment,
                stdin=lifeline,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)

    @property
    def pid(self) -> int:
        """Return the id of the process, and of its group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return None while it runs, else its exit code; negative: the signal that ended it."""
        return self._process.poll()

    def note_shared_memory(self) -> None:
        """Note the group's current shared memory, to be removed even if its owner has ended by then."""
        note(self.scratch, self.pid)

    def kill_group(self) -> None:
        """Kill the process and all that it started, without waiting."""
        with suppress(ProcessLookupError):  # nothing of the group is left
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, seconds: float) -> None:
        """Send the process SIGTERM, wait for its end for at most so long, and stop."""
        with suppress(subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(seconds)
        self.stop()

    def stop(self) -> None:
        """Kill the group, wait for the process to end, and remove the scratch folder. May be called again."""
        if self._lifeline < 0:
            return
        self.note_shared_memory()
        self.kill_group()
        self._process.wait(SECONDS_TO_DIE)
        os.close(self._lifeline)
        self._lifeline = -1
        remove_noted(self.scratch)
        shutil.rmtree(self.scratch, ignore_errors=True)
