"""First process of a sandbox: runs programs in forks of itself.

It runs one program after the other, and reports how each ended. The interpreter gets it as text, and it imports nothing of the
package. The kernel ignores every signal that a program sends to the first process of its namespace, and ends the whole namespace with
it. PR_SET_DUMPABLE keeps programs out of its memory and its descriptors, through which they could answer for the programs after them.

Requests on stdin: REQUEST, then the program. Answers on stdout: READY once, then REPLY and the output for each request.
"""

import ctypes
import gc
import os
import resource
import select
import struct
import sys
import time

REQUEST = struct.Struct(
    "<Id?"
)  # bytes of the program; seconds it may take; whether its variables are kept for the next
REPLY = struct.Struct("<cd?I")  # how it ended; seconds it took; whether there may be a next; bytes of output
LENGTH = struct.Struct("<I")
READY = b"R"
FINE, FAILED, TIMED_OUT, TOO_MUCH_OUTPUT, SIGNALLED = b"K", b"F", b"T", b"O", b"S"
PR_SET_DUMPABLE = 4
SIG_DFL, SIGINT, SIGKILL, SIGCONT, SIGSTOP, SIGXCPU = (
    None,
    2,
    9,
    18,
    19,
    24,
)  # the module signal takes a fifth of a cold start to import
WRITABLE = ("/tmp", "/dev/shm")  # whatever else there is, is mounted read-only
CHUNK = 65536
LONG_LINE = 1000  # characters; it is not quoted in a traceback
OFTEN_USED = (
    *("collections", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "linecache", "math"),
    *("random", "re", "statistics", "string", "traceback"),
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
        (size,) = LENGTH.unpack(receive(3, LENGTH.size))
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

    def __init__(self, limits: dict[str, int]) -> None:
        programs, self.programs = os.pipe()
        self.done, done = os.pipe()
        self.output, output = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                take_places(programs, done, output)
                restrict(limits)
                work()
            finally:
                os._exit(1)
        for descriptor in (programs, done, output):
            os.close(descriptor)
        self.ended = os.pidfd_open(
            self.pid
        )  # readable when the process has ended, even if another one still holds its pipes
        os.set_blocking(self.output, False)

    def run(self, program: bytes, seconds: float, most: int) -> tuple[bytes, bytes]:
        """Run a program; return how it ended (b"": its process has ended), and the output so far."""
        deadline = time.monotonic() + seconds
        signal_all(SIGCONT)
        send(self.programs, LENGTH.pack(len(program)) + program)
        output = b""
        waiting_for = [self.output, self.done, self.ended]
        while True:
            left = deadline - time.monotonic()
            ready = select.select(waiting_for, [], [], max(left, 0))[0]
            output += self.read(most + 1 - len(output)) if self.output in ready else b""
            if len(output) > most:
                return TOO_MUCH_OUTPUT, output[:most]
            said = os.read(self.done, 1) if self.done in ready else b""
            if said:  # by the interpreter, or by a program that writes to 4 itself
                return FINE if said == FINE else FAILED, output
            waiting_for = [each for each in waiting_for if each != self.done or each not in ready]  # it was closed
            if self.ended in ready:
                return b"", output
            if left <= 0:
                return TIMED_OUT, output

    def read(self, most: int) -> bytes:
        """Read the available output."""
        data = b""
        try:
            while len(data) < most:
                chunk = os.read(self.output, min(CHUNK, most - len(data)))
                if not chunk:
                    break
                data += chunk
        except BlockingIOError:
            pass
        return data

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
        for descriptor in (self.programs, self.done, self.output, self.ended):
            os.close(descriptor)


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


def serve(most_output: int, limits: dict[str, int]) -> None:
    """Answer requests. A sandbox in which a program has left a trace gets no further program."""
    untouched = traces()
    worker = None
    while True:
        size, seconds, keep = REQUEST.unpack(receive(0, REQUEST.size))
        program = receive(0, size)
        started = time.monotonic()
        cpu = {} if keep else {"CPU": int(seconds) + 2}
        worker = worker or Worker({**limits, **cpu})
        ending, output = worker.run(program, seconds, most_output)
        kept = keep and ending in (FINE, FAILED)
        if kept:
            signal_all(SIGSTOP)  # threads and children that it has left: they are not watched until the next program
        else:
            status = worker.end()
            ending = ending or ending_of(status)
        output += worker.read(most_output + 1 - len(output))
        if len(output) > most_output:
            ending, output = TOO_MUCH_OUTPUT, output[:most_output]
        if not kept:
            worker.close()
            worker = None
        again = kept or (not keep and traces() == untouched)
        send(1, REPLY.pack(ending, time.monotonic() - started, again, len(output)) + output)
        if not again:
            os._exit(0)


def main() -> None:
    """Parse the arguments and serve: bytes of output, whether to import what programs often use, and the limits as NAME=value."""
    kernel = ctypes.CDLL(None)
    kernel.signal(SIGINT, SIG_DFL)  # a handler, such as Python's, would let a program interrupt the server
    os.closerange(3, 4096)
    if kernel.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        os._exit(1)
    sys.path[:] = [place for place in sys.path if place]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output, warm, *limits = sys.argv[1:]
    if warm == "warm":
        for name in OFTEN_USED:
            __import__(name)
        gc.collect()
        gc.freeze()
    send(1, READY)
    serve(int(output), {name: int(value) for name, _, value in (each.partition("=") for each in limits)})


if __name__ == "__main__":
    main()
