"""One process that runs worker.py, and the questions it is asked."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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
