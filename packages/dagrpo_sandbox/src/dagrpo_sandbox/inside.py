"""First process of a sandbox: runs programs in forks of itself.

It runs one program after the other, and reports how each ended. The interpreter gets it as text, and it imports nothing of the
package. The kernel ignores every signal that a program sends to the first process of its namespace, and ends the whole namespace with
it. PR_SET_DUMPABLE keeps programs out of its memory and its descriptors, through which they could answer for the programs after them.
Programs and their output pass from pipe to pipe and not through its memory, of which the next program gets a copy.

Requests on stdin: REQUEST, SIZE and the program. Answers on stdout: READY once; then for each request its output as pieces, SIZE and that
many bytes, a SIZE of 0, and REPLY.
"""

import ctypes
import gc
import os
import resource
import select
import struct
import sys
import time
from _collections_abc import Callable

REQUEST = struct.Struct(
    "<Id?"
)  # bytes of the program; seconds it may take; whether its variables stay for the next one
REPLY = struct.Struct(
    "<cd?Q"
)  # how it ended; seconds it took; whether there may be a next; bytes that its processes hold
SIZE = struct.Struct("<I")
READY = b"R"
FINE, FAILED, TIMED_OUT, TOO_MUCH_OUTPUT, TOO_MUCH_MEMORY, SIGNALLED = b"K", b"F", b"T", b"O", b"M", b"S"
PR_SET_DUMPABLE, SPLICE_F_NONBLOCK = 4, 2
SIG_DFL, SIGINT, SIGKILL, SIGCONT, SIGSTOP, SIGXCPU = None, 2, 9, 18, 19, 24  # the module signal takes long to import
WATCH_SECONDS, IDLE_WATCH_SECONDS = 0.05, 1.0
INODE_BYTES = 1600  # of the kernel's memory, for a file in a tmpfs that the file system does not count
CHANGE_BYTES = 1 << 20  # of a session's memory, below which it is not measured again
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WRITABLE = ("/tmp", "/dev/shm")  # whatever else there is, is mounted read-only
LONG_LINE = 1000  # characters; it is not quoted in a traceback
OFTEN_USED = (
    *("ast", "bisect", "collections", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json"),
    *("linecache", "math", "random", "re", "statistics", "string", "traceback", "typing"),
)


def receive(descriptor: int, size: int) -> bytes:
    """Read exactly `size` bytes; at the end of the file the process ends, and with the first one the sandbox."""
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def send(descriptor: int, data: bytes) -> None:
    """Write all of the data."""
    while data:
        data = data[os.write(descriptor, data) :]


# --- the program's process -------------------------------------------------------------------------------------------


def restrict(limits: dict[str, int]) -> None:
    """Set hard limits, which no program can raise."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))


def take_places(programs: int, done: int, output: int) -> None:
    """Arrange the descriptors: stdin empty, stdout and stderr the output, 3 and 4 the server, and no others open."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (output, 1), (output, 2), (programs, 3), (done, 4)):  # programs < done
        os.dup2(descriptor, place)
    os.closerange(5, 4096)


def work() -> None:
    """Run each program from 3 and report its status on 4, all in one scope, until it is killed."""
    scope: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    sys.path.insert(0, os.getcwd())
    while True:
        (size,) = SIZE.unpack(receive(3, SIZE.size))
        fine = execute(receive(3, size).decode("utf-8", "replace"), scope)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001 a program may have put anything there, or closed it
                fine = False
        send(4, FINE if fine else FAILED)


def execute(program: str, scope: dict[str, object]) -> bool:
    """Run a program; return True if it ended well. Its threads are waited for, as an interpreter does at its end."""
    try:
        exec(compile(program, "<program>", "exec"), scope)
        wait_for_threads()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code is None or stop.code == 0
    except BaseException as error:  # noqa: BLE001 a program may raise anything
        show(program, error)
        return False
    return True


def wait_for_threads() -> None:
    """Wait for threads that are no daemons."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def show(program: str, error: BaseException) -> None:
    """Print the traceback as an interpreter does, with the program's own lines, and without ours."""
    import linecache
    import traceback

    lines = [line if len(line) < LONG_LINE else "\n" for line in program.splitlines(keepends=True)]
    linecache.cache["<program>"] = (len(program), None, lines, "<program>")
    if isinstance(error, SyntaxError) and len(error.text or "") >= LONG_LINE:
        error.text = None
    ours = error.__traceback__
    traceback.print_exception(type(error), error, ours.tb_next if ours else None)


# --- the server ------------------------------------------------------------------------------------------------------


class Worker:
    """Process of one program, or of several that share variables."""

    def __init__(self, limits: dict[str, int], kernel: ctypes.CDLL, passing: tuple[int, int]) -> None:
        self.passing, self.pass_on = passing
        programs, self.programs = os.pipe()
        self.done, done = os.pipe()
        self.output, output = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                take_places(programs, done, output)
                restrict(limits)
                kernel.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its share of pages could not be read
                work()
            finally:
                os._exit(1)
        for descriptor in (programs, done, output):
            os.close(descriptor)
        self.ended = os.pidfd_open(self.pid)  # readable at its end, even if another one still holds its pipes
        self.memory = Memory(self.pid)

    def run(self, size: int, seconds: float, most_output: int, most_memory: int) -> bytes:
        """Run the program on stdin; return how it ended, b"" if its process has. Its output goes to stdout."""
        started = watched = time.monotonic()
        at_once = min(size, 4096)  # a pipe holds them while its reader is stopped
        move(0, self.programs, SIZE.size + at_once)
        signal_all(SIGCONT)
        move(0, self.programs, size - at_once)
        self.left, self.at_end = most_output, False
        waiting_for = [self.output, self.done, self.ended]
        while True:
            now = time.monotonic()
            until = min(started + seconds, watched + WATCH_SECONDS)
            ready = select.select(waiting_for, [], [], max(until - now, 0))[0]
            said = os.read(self.done, 1) if self.done in ready else b""
            if said:  # by the interpreter, or by a program that writes to 4 itself
                return FINE if said == FINE else FAILED
            if self.output in ready and not self.show_output():
                return TOO_MUCH_OUTPUT
            at_end = {self.done} & {*ready} | ({self.output} if self.at_end else set())  # a program has closed them
            waiting_for = [each for each in waiting_for if each not in at_end]
            if self.ended in ready:
                return b""
            now = time.monotonic()
            if now >= started + seconds:
                return TIMED_OUT
            if now >= watched + WATCH_SECONDS:
                if self.memory.exceeds(most_memory):
                    return TOO_MUCH_MEMORY
                if self.memory.is_stopped:
                    self.memory.is_stopped = False
                    signal_all(SIGCONT)
                watched = time.monotonic()

    def show_output(self) -> bool:
        """Pass the available output to stdout; return False if it is more than may follow."""
        while True:
            try:
                moved = os.splice(self.output, self.pass_on, self.left + 1, flags=SPLICE_F_NONBLOCK)
            except BlockingIOError:
                return True
            shown = min(moved, self.left)
            if shown:
                send(1, SIZE.pack(shown))
                move(self.passing, 1, shown)
            self.left -= shown
            if moved > shown:
                return False
            if moved == 0:
                self.at_end = True
                return True

    def wait_stopped(self, most_memory: int) -> None:
        """Wait for the next request. What a program has left is stopped again and again, and ends with the sandbox if it grows."""
        while not select.select([0], [], [], IDLE_WATCH_SECONDS)[0]:
            signal_all(SIGSTOP)
            if self.memory.exceeds(most_memory):
                os._exit(0)

    def end(self) -> int:
        """Kill every process but this one, and reap them; return the worker's wait status. Afterwards the namespace is empty."""
        status = 0
        while True:
            signal_all(SIGKILL)
            try:
                pid, ended = os.waitpid(-1, 0)
            except ChildProcessError:
                return status
            status = ended if pid == self.pid else status

    def close(self) -> None:
        """Close its descriptors."""
        self.memory.close()
        for descriptor in (self.programs, self.done, self.output, self.ended):
            os.close(descriptor)


class Memory:
    """Memory of a worker, of what it has started, and of their files.

    `held`: bytes as of the last `measure`. `is_stopped`: all processes had to be stopped to be measured.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.folders = [os.open(folder, os.O_RDONLY) for folder in WRITABLE]
        self.loadavg = os.open("/proc/loadavg", os.O_RDONLY)
        self.statm = os.open(f"/proc/{worker}/statm", os.O_RDONLY)
        self.held = self.held_resident = 0
        self.is_stopped = False

    def measure(self) -> None:
        """Update `held`, which takes long, if resident sizes have changed."""
        if abs((resident := self.resident()) - self.held_resident) > CHANGE_BYTES:
            self.held, self.held_resident = self.proportional(), resident

    def exceeds(self, most: int) -> bool:
        """Return True if resident sizes, which count shared pages several times, are more, and proportional ones are too."""
        return self.resident() > most and self.proportional() > most

    def resident(self) -> int:
        """Return the bytes of all files, and the resident ones of all processes but this one."""
        if self.last_number() == self.worker:  # which has started nothing: no number is given again while it lives
            return self.files() + int(os.pread(self.statm, 99, 0).split()[1]) * PAGE_BYTES
        return self.of_all(resident_bytes)

    def proportional(self) -> int:
        """Return the bytes of all files, and of all processes but this one, shared pages divided among them."""
        return self.of_all(proportional_bytes)

    def files(self) -> int:
        """Return the bytes of the files in tmpfs."""
        states = [os.statvfs(folder) for folder in self.folders]
        return sum((s.f_blocks - s.f_bfree) * s.f_frsize + (s.f_files - s.f_ffree) * INODE_BYTES for s in states)

    def of_all(self, bytes_of: Callable[[str], int]) -> int:
        """Return the sum over all processes. If some start meanwhile, to which others could pass their memory, all are stopped."""
        while True:
            last = self.last_number()
            held = self.files()
            for process in (f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit() and name != "1"):
                held += bytes_of(process) or max(map(bytes_of, threads(process)), default=0)
            if self.last_number() == last:
                return held
            signal_all(SIGSTOP)
            self.is_stopped = True

    def last_number(self) -> int:
        """Return the last process number that the namespace has given, to a process or a thread."""
        return int(os.pread(self.loadavg, 99, 0).split()[-1])

    def close(self) -> None:
        """Close its descriptors."""
        for descriptor in (self.loadavg, self.statm, *self.folders):
            os.close(descriptor)


def threads(process: str) -> list[str]:
    """Return the folders of a process's threads, of which the first may have ended, and no longer shows the memory of the others."""
    try:
        return [f"{process}/task/{name}" for name in os.listdir(f"{process}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def resident_bytes(folder: str) -> int:
    """Return the resident bytes of a process or thread; 0 once it has ended."""
    try:
        with open(f"{folder}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def proportional_bytes(folder: str) -> int:
    """Return the bytes of a process or thread, shared pages divided among those that share them, and of what is swapped out."""
    try:
        with open(f"{folder}/smaps_rollup", "rb") as rollup:
            return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith((b"Pss:", b"SwapPss:")))
    except PermissionError:  # it has closed itself
        return resident_bytes(folder)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def move(source: int, target: int, size: int) -> None:
    """Move exactly `size` bytes from pipe to pipe; at the end of the source the process ends."""
    while size:
        moved = os.splice(source, target, size)
        if not moved:
            os._exit(0)
        size -= moved


def signal_all(number: int) -> None:
    """Send a signal to every process but this one."""
    try:  # noqa: SIM105 contextlib takes a tenth of a cold start to import
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def ending_of(status: int) -> bytes:
    """Return the ending of a process that has ended by itself."""
    if os.WIFSIGNALED(status):
        return TIMED_OUT if os.WTERMSIG(status) == SIGXCPU else SIGNALLED
    return FINE if os.WEXITSTATUS(status) == 0 else FAILED


def traces() -> list[tuple[int, int]]:
    """Return a value that changes with every change in the writable folders: a program cannot set a file's ctime."""
    return [(os.stat(folder).st_ctime_ns, os.stat(folder).st_mode) for folder in WRITABLE]


def serve(most_output: int, most_memory: int, limits: dict[str, int], kernel: ctypes.CDLL) -> None:
    """Answer requests. A sandbox in which a program has left a trace gets no further program."""
    untouched, passing = traces(), os.pipe()  # no program can open it, to take back output that was announced
    worker = None
    while True:
        if worker is not None:
            worker.wait_stopped(most_memory)
        size, seconds, keep = REQUEST.unpack(receive(0, REQUEST.size))
        started = time.monotonic()
        cpu = {} if keep else {"CPU": int(seconds) + 2}
        worker = worker or Worker({**limits, **cpu}, kernel, passing)
        ending = worker.run(size, seconds, most_output, most_memory)
        kept = keep and ending in (FINE, FAILED)
        if kept:
            signal_all(SIGSTOP)
            worker.memory.measure()
        else:
            status = worker.end()
            ending = ending or ending_of(status)
        if ending != TOO_MUCH_OUTPUT and not worker.show_output():
            ending, kept = TOO_MUCH_OUTPUT, False
            worker.end()
        if kept:
            signal_all(SIGSTOP)  # reading the output must not have woken anything
        unchanged = (
            not keep
            and ending != TOO_MUCH_OUTPUT
            and traces() == untouched
            and worker.memory.last_number() == worker.pid
        )
        again = kept or unchanged
        send(1, SIZE.pack(0) + REPLY.pack(ending, time.monotonic() - started, again, worker.memory.held))
        if not again:
            os._exit(0)
        if not kept:
            worker.close()
            worker = None


def main() -> None:
    """Parse the arguments and serve: bytes of output and memory, whether to import what programs often use, and limits as NAME=value."""
    kernel = ctypes.CDLL(None)
    kernel.signal(SIGINT, SIG_DFL)  # a handler, such as Python's, would let a program interrupt the server
    os.closerange(3, 4096)
    if kernel.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        os._exit(1)
    sys.path[:] = [place for place in sys.path if place]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output, memory, warm, *limits = sys.argv[1:]
    if warm == "warm":
        for name in OFTEN_USED:
            __import__(name)
        gc.collect()
        gc.freeze()
    send(1, READY)
    serve(
        int(output),
        int(memory),
        {name: int(value) for name, _, value in (each.partition("=") for each in limits)},
        kernel,
    )


if __name__ == "__main__":
    main()
