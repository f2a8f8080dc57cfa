"""Worker processes that compare answers with math-verify, each within a time limit.

An answer that takes longer costs its worker, which is killed and replaced; the others continue with the next answers.
A batch has a limit too, which grows with its size: the remainder is unverifiable, and costly answers come last.

math-verify's own limit is off: it works by signals, which only a main thread may use, and which a long
multiplication does not hear. worker.py compares; the verifiers decide which answers need no worker.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import LifoQueue

from dagrpo_answers.worker_process import MEMORY_BYTES, Comparison, Reply, Worker

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
