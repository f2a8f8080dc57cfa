"""Worker processes that compare answers with math-verify, each within a time limit.

An answer that takes longer costs its worker, which is killed and replaced; the others continue with the next answers.
A batch has a limit too, which grows with its size: the remainder is unverifiable, and what looks costly comes last.

math-verify's own limit is off: it works by signals, which only a main thread may use, and which a long
multiplication does not hear. worker.py compares; the verifiers decide what needs no worker.
"""

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

from dagrpo.utils.worker_process import LineProcess

Reply = Literal["right", "wrong", "unverifiable", "no_ground_truth"]

LONGEST_ANSWER = 2000  # characters; a longer one is not sent
DEEP_NESTING = 12  # braces and parentheses inside each other; a deeper answer looks costly
DEEPEST_NESTING = 60  # a deeper one is not sent
MEMORY_BYTES = 2 << 30  # address space of one worker
START_SECONDS = 300.0  # to import math-verify takes less than one, except on a machine with much other work
MOMENT_SECONDS = 0.1  # a process that ends so soon after a question is asked once more
LIMITS_OF_A_BATCH = 5  # times the limit of one answer, for each worker: what all slow answers of a batch may take
SECONDS_PER_ANSWER = 0.05  # on top of it: many times what an ordinary one takes
MODULE = "dagrpo.rewards.worker"

_COSTLY = re.compile(r"!|\\(?:sum|prod|int|lim|binom)(?![A-Za-z])|\^[^^]*\^|[0-9]{4}\s*\}?\s*\Z|\^\s*\{?[0-9]{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One question to math-verify: is this answer the ground truth? Without an answer: can the ground truth be read?"""

    answer: str | None
    ground_truth: str

    @property
    def hopeless(self) -> bool:
        """Return whether a text is so long or so deep that it would only cost the limit."""
        return any(
            len(text) > LONGEST_ANSWER or _nesting(text) > DEEPEST_NESTING
            for text in (self.answer or "", self.ground_truth)
        )

    @property
    def costly(self) -> bool:
        """Return whether the answer may take long: powers of powers, factorials, sums, much nesting."""
        answer = self.answer or ""
        return len(answer) > 200 or _COSTLY.search(answer) is not None or _nesting(answer) > DEEP_NESTING


class _Budget:
    """The remaining time of a batch, in seconds of workers; thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        with self._lock:
            return self._left

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left -= seconds


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
    """One process, used by one thread at a time."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._process = LineProcess(MODULE, [str(memory_bytes)], {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"})
        self.warm = False  # math-verify is imported, and waits

    def start(self) -> None:
        """Start the process, unless it runs; it warms up by itself."""
        if self._process.start():
            self.warm = False

    def ask(self, comparison: Comparison, seconds: float) -> Reply:
        """Return math-verify's reply, unverifiable if it took too long or ended the process.

        Warming up does not count. Raises RuntimeError if no process can be started.
        """
        request = {"answer": comparison.answer, "ground_truth": comparison.ground_truth, "seconds": seconds}
        question = json.dumps(request).encode() + b"\n"
        self.warm_up()
        asked = time.monotonic()
        line = self._process.exchange(question, seconds)
        if line is None and time.monotonic() - asked < MOMENT_SECONDS:
            # A process that was killed while idle may look alive until its last thread is gone: that is no answer's fault.
            self.kill()
            self.warm_up()
            line = self._process.exchange(question, seconds - MOMENT_SECONDS)
        if line is None:
            self.kill()
            self.start()  # to be warm when it is next asked
            return "unverifiable"
        reply: Reply = json.loads(line)["verdict"]
        assert reply in get_args(Reply)
        return reply

    def kill(self) -> None:
        """End the process and all that it may have started."""
        self.warm = False
        self._process.kill()

    def warm_up(self) -> None:
        """Wait until math-verify is imported. RuntimeError when no process can be started."""
        self.start()
        if not self.warm and self._process.exchange(b"", START_SECONDS) is None:
            self.kill()
            raise RuntimeError(
                f"the worker process {MODULE} did not start: run python -m {MODULE} {MEMORY_BYTES} to see why."
            )
        self.warm = True


class WorkerPool:
    """One worker per processor, at most 8, started when first needed; thread-safe."""

    def __init__(self, *, seconds: float, processes: int | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        count = processes or min(8, len(os.sched_getaffinity(0)))
        self._seconds = seconds
        self._workers = [Worker(memory_bytes) for _ in range(count)]
        self._free = list(self._workers)
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="grading")

    def compare(self, comparisons: Sequence[Comparison]) -> list[Reply]:
        """Return one reply for each comparison, in order. The same question is asked once, and costly ones after all others."""
        questions = sorted(dict.fromkeys(comparisons), key=lambda comparison: comparison.costly)
        limit = LIMITS_OF_A_BATCH * self._seconds * len(self._workers) + SECONDS_PER_ANSWER * len(questions)
        budget = _Budget(limit)
        replies = dict(zip(questions, self._threads.map(lambda each: self._one(each, budget), questions), strict=True))
        return [replies[comparison] for comparison in comparisons]

    def close(self) -> None:
        """End all processes. What is being compared is finished first."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.kill()

    def _one(self, comparison: Comparison, budget: _Budget) -> Reply:
        if comparison.hopeless or budget.left <= 0:
            return "unverifiable"
        worker = self._take()
        try:
            worker.warm_up()
            asked = time.monotonic()
            reply = worker.ask(comparison, self._seconds)
            # A worker that is lost has to be started again, however soon it was.
            budget.spend(max(self._seconds if reply == "unverifiable" else 0.0, time.monotonic() - asked))
            return reply
        finally:
            with self._changed:
                self._free.append(worker)
                self._changed.notify()

    def _take(self) -> Worker:
        """Return a free worker, a warm one if there is one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free))
            worker = max(self._free, key=lambda worker: worker.warm)
            self._free.remove(worker)
            return worker
