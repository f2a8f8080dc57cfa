"""What is spent beside a step: requests at the same moment, answers for math-verify, test splits, runs of one seed.

    OMP_NUM_THREADS=1 python -m benchmarks.scale beside_a_step > table.md

Processor time of this process and its workers, in which other work on the machine does not count.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.scale.measuring import exponent, markdown
from mlflow.tracking import MlflowClient
from tests.engine.test_growth import REQUEST, answering

from dagrpo.data.config import Data
from dagrpo.data.prepare import _test_split
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.sglang.client import ServerClient
from dagrpo_answers.pool import Comparison, WorkerPool
from dagrpo_mlflow.parents import settle_parents
from dagrpo_mlflow.runs import PARENT, Runs
from dagrpo_mlflow.store import open_client

Work = Callable[[], str | None]  # returns what else is to be said of it


def table(arguments: Sequence[str]) -> str:
    """Measure each work at its sizes and return the table."""
    argparse.ArgumentParser(prog="beside_a_step", description=__doc__).parse_args(arguments)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with answering() as address:
        rows = [_row("requests at the same moment", (64, 512, 4096, 8192), lambda count: partial(_ask, address, count))]
    rows.append(
        _row("different LaTeX answers, two workers and their start", (100, 400, 1600), lambda n: partial(_judge, n))
    )
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        rows.append(_row("another task's test split, by its train rows", (10_000, 40_000, 160_000), _mirror))
        rows.append(_row("closing a seed's run, by the runs below it", (50, 200, 800), _Siblings(Path(folder)).add))
    return markdown(("work", "sizes", "processor seconds", "exponent", ""), rows)


def _row(work: str, sizes: tuple[int, ...], prepare: Callable[[int], Work]) -> list[str]:
    """Measure each size without `prepare`, once the first has been done for a start."""
    prepare(sizes[0])()
    seconds, remark = [], None
    for size in sizes:
        work_of_size = prepare(size)
        gc.collect()
        start = _processor_seconds()
        remark = work_of_size()
        seconds.append(_processor_seconds() - start)
    figures = [" / ".join(f"{value:{form}}" for value in values) for values, form in ((sizes, ","), (seconds, ".2f"))]
    return [work, *figures, f"{exponent(sizes, seconds):.2f}", remark or ""]


def _processor_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _ask(address: str, count: int) -> str:
    """Send as many requests as attempts that sample freely do; return the number of open files meanwhile."""

    async def ask() -> int:
        client = ServerClient(Endpoint(address=address), 600)
        works = asyncio.gather(
            *(client.generate([REQUEST], WeightVersion(name="default", sent="default")) for _ in range(count))
        )
        most = 0
        while not works.done():
            most = max(most, len(os.listdir("/proc/self/fd")))
            await asyncio.wait([works], timeout=0.05)
        await works
        await client.close()
        return most

    return f"{asyncio.run(ask())} open files"


def _judge(count: int) -> None:
    truth = "\\frac{17}{7}+\\sqrt{2}"
    answers = (f"\\frac{{{n}}}{{{n + 3}}} + \\sqrt{{{n}}}" for n in range(count))
    pool = WorkerPool(seconds=10.0, processes=2)
    pool.compare([Comparison(answer=answer, ground_truth=truth) for answer in answers])
    pool.close()


def _mirror(train: int) -> Work:
    for split, rows in (("train", train), ("test", 1319)):
        path = Path(f"mirror/gsm8k/{split}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or split == "train":
            lines = (
                json.dumps({"question": f"What is {n} in {split}?", "answer": f"It is\n#### {n}"}) for n in range(rows)
            )
            path.write_text("".join(f"{line}\n" for line in lines))
    params = Data(mirror="mirror", max_train=train)
    return lambda: f"{len(_test_split('gsm8k', params)):,} rows"


class _Siblings:
    """Runs below one parent run in a database, more with each size."""

    def __init__(self, folder: Path) -> None:
        self._client: MlflowClient = open_client(f"sqlite:///{folder}/mlflow.db")
        self._experiment = self._client.create_experiment("demo")
        self._parent = self._client.create_run(self._experiment, tags={"role": "parent"}).info.run_id
        self._count = 0

    def add(self, count: int) -> Work:
        for number in range(self._count, count):
            tags = {PARENT: self._parent, "role": "stage", "identity": f"sibling {number}"}
            run = self._client.create_run(self._experiment, tags=tags)
            self._client.set_terminated(run.info.run_id)
        self._count = count
        self._client.update_run(self._parent, "RUNNING")
        return lambda: settle_parents(Runs(self._client, self._experiment, {}))


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
