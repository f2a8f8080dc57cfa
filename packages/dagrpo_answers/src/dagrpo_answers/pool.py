"""Worker processes that compare answers with math-verify, each within a time limit.

An answer that takes longer costs its worker, which is killed and replaced; the others continue with the next answers.
A batch has a limit too, which grows with its size: the remainder is unverifiable, and costly answers come last.

math-verify's own limit is off: it works by signals, which only a main thread may use, and which a long
multiplication does not hear. worker.py compares; the verifiers decide which answers need no worker.
"""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from dagrpo_answers.worker_process import MEMORY_BYTES, Comparison, Reply, Worker

LIMITS_OF_A_BATCH = 5  # times the limit of one answer, for each worker: time for all slow answers of a batch
SECONDS_PER_ANSWER = 0.05  # on top of it: many times what an ordinary one takes
SECONDS_PER_TEXT = 0.5  # the same for a whole text, which math-verify searches for an answer
MOST_REMEMBERED = 1 << 15  # replies: some 10 MB of ordinary answers, and at most 500 MB


class _Budget:
    """The remaining time of a batch, in seconds of workers; thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()

    @property
    def is_spent(self) -> bool:
        with self._lock:
            return self._seconds <= 0

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._seconds -= seconds


class WorkerPool:
    """Workers, started when first needed, and their latest replies; thread-safe."""

    def __init__(self, *, seconds: float, processes: int = 1, memory_bytes: int = MEMORY_BYTES) -> None:
        self._seconds = seconds
        self._workers = [Worker(memory_bytes) for _ in range(processes)]
        self._free = list(self._workers)
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grading")
        self._known: dict[Comparison, Reply] = {}  # without unverifiable: another time it may be decided

    def compare(self, comparisons: Sequence[Comparison]) -> list[Reply]:
        """Return one reply for each comparison, in order. The same question is asked once, and costly ones after all others."""
        with self._changed:
            known = {each: self._known[each] for each in dict.fromkeys(comparisons) if each in self._known}
        unknown = (each for each in dict.fromkeys(comparisons) if each not in known)
        questions = sorted(unknown, key=lambda comparison: comparison.costly)
        ordinary = sum(SECONDS_PER_TEXT if each.published else SECONDS_PER_ANSWER for each in questions)
        budget = _Budget(LIMITS_OF_A_BATCH * self._seconds * len(self._workers) + ordinary)
        replies = dict(zip(questions, self._threads.map(lambda each: self._one(each, budget), questions), strict=True))
        self._remember(
            {each: reply for each, reply in replies.items() if reply != "unverifiable" and not each.published}
        )
        return [known.get(comparison) or replies[comparison] for comparison in comparisons]

    def _remember(self, replies: Mapping[Comparison, Reply]) -> None:
        with self._changed:
            self._known |= replies
            for oldest in list(itertools.islice(self._known, max(0, len(self._known) - MOST_REMEMBERED))):
                del self._known[oldest]

    def close(self) -> None:
        """End all processes. What is being compared is finished first."""
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.kill()

    def _one(self, comparison: Comparison, budget: _Budget) -> Reply:
        if comparison.hopeless or budget.is_spent:
            return "unverifiable"
        worker = self._take()
        try:
            worker.warm_up()
            start = time.monotonic()
            reply = worker.ask(comparison, self._seconds)
            # A worker that is lost has to be started again, however soon it was.
            budget.spend(max(self._seconds if reply == "unverifiable" else 0.0, time.monotonic() - start))
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
