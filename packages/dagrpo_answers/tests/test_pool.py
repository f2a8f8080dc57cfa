"""Worker processes against hostile answers: each costs its limit at most, and nobody else anything."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

import psutil
import pytest
from tests.everyday import everyday
from tests.waiting import wait_until

from dagrpo_answers import pool as pool_module
from dagrpo_answers.pool import MODULE, Comparison, Reply, WorkerPool

ENDLESS = Comparison(answer="9^{9^{9}}", ground_truth="3")
HALF = Comparison(answer="\\frac{2}{4}", ground_truth="\\frac{1}{2}")
PATIENCE_SECONDS = 30.0

HOSTILE = {
    "a tower of powers": "9^{9^{9}}",
    "a power of ten": "10^{10^{10}}",
    "400 parentheses": "(" * 400 + "1" + ")" * 400,
    "50 parentheses": "(" * 50 + "x" + ")" * 50,
    "300 fractions": "\\frac{1}{" * 300 + "2" + "}" * 300,
    "a factorial": "(10^{9})!",
    "factorials of factorials": "((100!)!)!",
    "200,000 characters": "1+" * 100_000 + "1",
    "a long sum": "\\sum_{k=1}^{10^{10}} k^{k}",
}
EVIL_PARENT = """
import threading, time
from dagrpo_answers import pool as pool_module
from dagrpo_answers.pool import WorkerPool
from dagrpo_answers.pool import Comparison
pool = WorkerPool(seconds={seconds}, processes=1)
pool.compare([Comparison(answer="2/4", ground_truth="1/2")])
print("warm", flush=True)
if {busy}:
    threading.Thread(target=pool.compare, args=([Comparison(answer="9^{{9^{{9}}}}", ground_truth="3")],)).start()
time.sleep(600)
"""


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(seconds=1.0, processes=2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def patient_pool() -> Iterator[WorkerPool]:
    """One worker for comparisons that have all the time they want."""
    pool = WorkerPool(seconds=10.0, processes=1)
    yield pool
    pool.close()


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if MODULE in child.cmdline()]


@pytest.fixture
def started_workers() -> Callable[[], list[psutil.Process]]:
    """The workers that were started since the test began."""
    before = set(workers_of(psutil.Process()))
    return lambda: [worker for worker in workers_of(psutil.Process()) if worker not in before]


@pytest.mark.parametrize("name", everyday(["a tower of powers", "200,000 characters"], HOSTILE))
def test_a_hostile_answer_is_unverifiable_and_the_next_one_is_compared(name: str, pool: WorkerPool) -> None:
    hostile = Comparison(answer=HOSTILE[name], ground_truth="3")
    assert pool.compare([hostile]) == ["unverifiable"]
    assert pool.compare([HALF]) == ["right"]


@pytest.mark.parametrize(
    ("answer", "truth", "reply"),
    [
        ("\\frac{2}{4}", "\\frac{1}{2}", "right"),
        ("2^{10}", "1024", "right"),
        ("\\{2, 1\\}", "\\{1, 2\\}", "right"),
        ("x^2+2x+1", "(x+1)^2", "right"),
        ("34 or 35", "35", "wrong"),
        ("1 + 1", "3", "wrong"),
        ("no mathematics, sorry", "3", "wrong"),
        ("\\frac{", "3", "wrong"),
        ("\ud800", "3", "wrong"),
        ("3", "\\frac{", "no_ground_truth"),
    ],
)
def test_math_verify_says_what_is_equal(answer: str, truth: str, reply: Reply, patient_pool: WorkerPool) -> None:
    assert patient_pool.compare([Comparison(answer=answer, ground_truth=truth)]) == [reply]


def test_replies_are_in_the_order_of_the_questions_and_none_is_asked_twice(
    started_workers: Callable[[], list[psutil.Process]],
) -> None:
    pool = WorkerPool(seconds=10.0, processes=2)
    questions = [Comparison(answer=f"{n}+0", ground_truth=str(n % 3)) for n in range(12)]
    expected = ["right" if n < 3 else "wrong" for n in range(12)]
    assert pool.compare(questions) == expected
    assert len(started_workers()) == 2
    pool.close()
    assert started_workers() == []


class Counted:
    """A worker that takes an answer with `!` for undecided, and any other for right."""

    asked: ClassVar[list[str | None]] = []

    def __init__(self, memory_bytes: int) -> None:
        pass

    def warm_up(self) -> None:
        """It is warm."""

    def kill(self) -> None:
        """It is no process."""

    def ask(self, comparison: Comparison, seconds: float) -> Reply:
        self.asked.append(comparison.answer)
        return "unverifiable" if "!" in str(comparison.answer) else "right"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What workers are asked."""
    monkeypatch.setattr(pool_module, "Worker", Counted)
    monkeypatch.setattr(Counted, "asked", [])
    return Counted.asked


@pytest.mark.parametrize("steps", [1, 10, 100])
def test_what_workers_are_asked_grows_with_the_different_answers_and_not_with_the_steps(
    counted: list[str | None], steps: int
) -> None:
    pool = WorkerPool(seconds=1.0, processes=2)
    for _ in range(steps):
        questions = [Comparison(answer=str(n % 20), ground_truth="1") for n in range(100)]
        assert pool.compare([*questions, Comparison(answer="!", ground_truth="1")]) == [
            *["right"] * 100,
            "unverifiable",
        ]
    assert sorted(map(str, counted)) == sorted([*(str(n) for n in range(20)), *["!"] * steps])
    pool.close()


def test_the_oldest_replies_are_forgotten(counted: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_REMEMBERED", 3)
    pool = WorkerPool(seconds=1.0, processes=1)
    for answer in "abcdad":
        pool.compare([Comparison(answer=answer, ground_truth="1")])
    assert counted == [*"abcda"]
    pool.close()


def test_the_slow_answers_of_a_batch_have_a_limit_together_and_come_after_all_others(
    counted: list[str | None],
) -> None:
    pool = WorkerPool(seconds=2.0, processes=1)
    slow = [Comparison(answer=f"{n}!", ground_truth="3") for n in range(40)]
    ordinary = [Comparison(answer=f"{n}+0", ground_truth="3") for n in range(60)]
    assert pool.compare([*slow, *ordinary]) == ["unverifiable"] * 40 + ["right"] * 60
    # 5 times 2 seconds, and 0.05 for each of 100 answers: after 8 answers of 2 seconds nothing is left.
    assert counted == [each.answer for each in [*ordinary, *slow[:8]]]
    assert pool.compare(slow[:1]) == ["unverifiable"]
    assert counted[-1] == "0!"
    pool.close()


def test_a_worker_that_dies_at_work_leaves_its_answer_unverifiable_and_is_replaced(
    started_workers: Callable[[], list[psutil.Process]],
) -> None:
    pool = WorkerPool(seconds=PATIENCE_SECONDS, processes=1)
    pool.compare([HALF])
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.extend(pool.compare([ENDLESS])))
    asking.start()
    (worker,) = started_workers()
    idle = worker.cpu_times().user
    wait_until(lambda: worker.cpu_times().user > idle + 0.2)
    worker.send_signal(signal.SIGSEGV)
    asking.join()
    assert replies == ["unverifiable"]
    assert pool.compare([HALF]) == ["right"]
    pool.close()


def test_a_worker_that_comes_near_its_memory_limit_gives_up() -> None:
    pool = WorkerPool(seconds=10.0, processes=1, memory_bytes=700 << 20)  # its threads alone take more than half of it
    assert pool.compare([HALF]) == ["unverifiable"]
    pool.close()


def test_a_process_that_cannot_start_is_an_error_that_says_how_to_see_why() -> None:
    pool = WorkerPool(seconds=1.0, processes=1, memory_bytes=1 << 20)
    with pytest.raises(RuntimeError, match=r"did not start: run python -m dagrpo_answers\.worker"):
        pool.compare([HALF])
    pool.close()


@pytest.mark.parametrize("busy", everyday([True], [False, True]))
def test_no_worker_outlives_a_parent_that_was_killed(busy: bool) -> None:
    program = EVIL_PARENT.format(seconds=2.0, busy=busy)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "warm\n"
    (worker,) = workers_of(psutil.Process(parent.pid))
    if busy:
        idle = worker.cpu_times().user
        wait_until(lambda: worker.cpu_times().user > idle + 0.2)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.nightly
def test_nobody_waits_for_a_hostile_answer() -> None:
    pool = WorkerPool(seconds=5.0, processes=2)
    pool.compare([HALF, Comparison(answer="4/8", ground_truth="1/2")])
    hostile = threading.Thread(target=pool.compare, args=([ENDLESS],))
    hostile.start()
    assert set(pool.compare([Comparison(answer=f"{n}+{n}", ground_truth=str(2 * n)) for n in range(20)])) == {"right"}
    assert hostile.is_alive()
    hostile.join()
    pool.close()


@pytest.mark.nightly
def test_a_worker_that_dies_with_nothing_to_do_costs_no_answer(
    pool: WorkerPool, started_workers: Callable[[], list[psutil.Process]]
) -> None:
    pool.compare([HALF])
    for worker in started_workers():
        worker.kill()
        wait_until(lambda worker=worker: worker.status() == psutil.STATUS_ZOMBIE)  # type: ignore[misc]
    assert pool.compare([Comparison(answer="3/6", ground_truth="1/2")]) == ["right"]
