"""Worker processes that compare answers with math-verify, each within a time limit.

An answer that takes longer costs its worker, which is killed and replaced; the others continue with the next answers.
A batch has a limit too, which grows with its size: the remainder is unverifiable, and costly answers come last.

math-verify's own limit is off: it works by signals, which only a main thread may use, and which a long
multiplication does not hear. worker.py compares; the verifiers decide which answers need no worker.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import Literal, get_args

Reply = Literal["right", "wrong", "unverifiable", "no_ground_truth"]

LONGEST_ANSWER = 2000  # characters; a longer one is not sent
DEEP_NESTING = 12  # braces and parentheses inside each other; a deeper answer counts as costly
DEEPEST_NESTING = 60  # a deeper one is not sent
MEMORY_BYTES = 2 << 30  # address space of one worker
START_SECONDS = 300.0  # to import math-verify takes less than one, except on a machine with much other work
MOMENT_SECONDS = 0.1  # a question is repeated once if the process ended sooner than this
MODULE = "dagrpo_answers.worker"
VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

_ENDLESS = re.compile(r"!|\\(?:sum|prod|int|lim|binom)(?![A-Za-z])|\^[^^]*\^|\^\s*\{?[0-9]{3}")
_LONG_NUMBER = re.compile(r"[0-9]{4}\s*\}?\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One question to math-verify: is this answer the ground truth? Without an answer: can the ground truth be read?

    published: the answer is a whole text, and the library reads both by its own defaults.
    """

    answer: str | None
    ground_truth: str
    published: bool = False

    @property
    def hopeless(self) -> bool:
        """Return True if a text is so long or so deep that it would certainly exceed the limit."""
        return not self.published and any(
            len(text) > LONGEST_ANSWER or _nesting(text) > DEEPEST_NESTING
            for text in (self.answer or "", self.ground_truth)
        )

    @property
    def costly(self) -> bool:
        """Return True if the answer may take long: powers of powers, factorials, sums, much nesting."""
        answer = self.answer or ""
        is_long = len(answer) > 200 or bool(_LONG_NUMBER.search(answer)) or _nesting(answer) > DEEP_NESTING
        return not self.published and (self.endless or is_long)

    @property
    def endless(self) -> bool:
        """Return True if the digits of the answer may take any time: powers of powers, factorials, sums."""
        return _ENDLESS.search(self.answer or "") is not None


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
    return deepest


class Worker:
    """A child process that answers each message with a message. Used by one thread at a time."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._command = [sys.executable, "-P", "-m", MODULE, str(memory_bytes)]
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: Connection | None = None
        self._is_warm = False  # math-verify is imported, and waits

    def start(self) -> None:
        """Start the process, unless it runs; it warms up by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died while idle
        if self._process is not None:
            return
        self._messages, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                self._command,
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | VARIABLES,
                start_new_session=True,
            )

    def warm_up(self) -> None:
        """Wait until math-verify is imported. Raises RuntimeError if no process can be started."""
        self.start()
        if not self._is_warm and self._exchange(b"", START_SECONDS) is None:  # its first message says that it is ready
            self.kill()
            raise RuntimeError(
                f"the worker process {MODULE} did not start: run python -m {MODULE} {MEMORY_BYTES} to see why."
            )
        self._is_warm = True

    def ask(self, comparison: Comparison, seconds: float) -> Reply:
        """Return math-verify's reply, unverifiable if it took too long or ended the process.

        Warming up does not count. Raises RuntimeError if no process can be started.
        """
        question = json.dumps({**asdict(comparison), "seconds": seconds}).encode()
        self.warm_up()
        start = time.monotonic()
        answer = self._exchange(question, seconds)
        if answer is None and time.monotonic() - start < MOMENT_SECONDS:
            # A process that was killed while idle may look alive until its last thread is gone: that is no answer's fault.
            self.kill()
            self.warm_up()
            answer = self._exchange(question, seconds - MOMENT_SECONDS)
        if answer is None:
            self.kill()
            self.start()  # to be warm for the next question
            return "unverifiable"
        reply: Reply = json.loads(answer)
        assert reply in get_args(Reply)
        return reply

    def kill(self) -> None:
        """End the process and all that it may have started."""
        self._is_warm = False
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert self._messages is not None
        self._messages.close()

    def _exchange(self, message: bytes, seconds: float) -> bytes | None:
        """Send a message, if it is not empty, and return the answer; None if the process takes too long or ends."""
        assert self._messages is not None
        with suppress(EOFError, OSError):  # it has ended
            if message:
                self._messages.send_bytes(message)
            if self._messages.poll(seconds):
                return self._messages.recv_bytes()
        return None


LIMITS_OF_A_BATCH = 5  # times the limit of one answer, for each worker: time for all slow answers of a batch
SECONDS_PER_ANSWER = 0.05  # on top of it: many times what an ordinary one takes
SECONDS_PER_TEXT = 0.5  # the same for a whole text, which math-verify searches for an answer
MOST_REMEMBERED = 1 << 15  # replies: some 10 MB of ordinary answers, and at most 500 MB


class WorkerPool:
    """Workers, started when first needed, and their latest replies; thread-safe."""

    def __init__(self, *, seconds: float, processes: int = 1, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._workers = [Worker(memory_bytes) for _ in range(processes)]
        self._free: LifoQueue[Worker] = LifoQueue()  # the one that answered last is warm
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grading")
        self._lock = threading.Lock()
        self._known: dict[Comparison, Reply] = {}  # without unverifiable: another time it may be decided

    def compare(self, comparisons: Sequence[Comparison]) -> list[Reply]:
        """Return one reply for each comparison, in order. The same question is asked once, and costly ones after all others."""
        with self._lock:
            known = {each: self._known[each] for each in dict.fromkeys(comparisons) if each in self._known}
        unknown = (each for each in dict.fromkeys(comparisons) if each not in known)
        questions = sorted(unknown, key=lambda comparison: comparison.costly)
        left = LIMITS_OF_A_BATCH * self._seconds * len(self._workers)  # seconds of workers
        left += sum(SECONDS_PER_TEXT if each.published else SECONDS_PER_ANSWER for each in questions)

        def one(question: Comparison) -> Reply:
            nonlocal left
            if question.hopeless or left <= 0:
                return "unverifiable"
            reply, seconds = self._ask(question)
            with self._lock:
                left -= seconds
            return reply

        replies = dict(zip(questions, self._threads.map(one, questions), strict=True))
        with self._lock:
            self._known |= {
                each: reply for each, reply in replies.items() if reply != "unverifiable" and not each.published
            }
            while len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
        return [known.get(comparison) or replies[comparison] for comparison in comparisons]

    def close(self) -> None:
        """End all processes. What is being compared is finished first."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.kill()

    def _ask(self, question: Comparison) -> tuple[Reply, float]:
        """Return the reply, and what it has cost in seconds of a worker."""
        worker = self._free.get()
        try:
            worker.warm_up()
            start = time.monotonic()
            reply = worker.ask(question, self._seconds)
            # A worker that is lost has to be started again, however soon it was.
            return reply, max(self._seconds if reply == "unverifiable" else 0.0, time.monotonic() - start)
        finally:
            self._free.put(worker)
