"""Rows per second of stage prepare against `datasets.map`, and what the hub's 1.79 million rows of DAPO cost.

    OMP_NUM_THREADS=1 python benchmarks/prepare.py ../shared/data models/qwen3 --repeats 3

Takes a mirror with dapo/dapo_math_17k.parquet and the folder of a model with a tokenizer. Both sides read the same file,
give it the same prompt form, check that the ground truths are readable, drop exact repeats, render and tokenize the
prompts, and write Parquet. Ours also looks for repeats in other typing, conflicting answers and contamination, and holds
out a test split, which a map over rows cannot do. Importing is not counted, but for the last figure, a whole process.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.types import Row
from dagrpo.data.config import Data
from dagrpo.data.filters.text import normalised
from dagrpo.data.prepare import prepare
from dagrpo.data.task import get_task
from dagrpo.rewards.verifiers import get_verifier

TASK = "dapo"
FILE = "dapo/dapo_math_17k.parquet"
COPIES = 100  # as the hub has them
ONE_PROCESS = (
    "import sys; from pathlib import Path; from dagrpo.data.config import Data; from dagrpo.data.prepare import prepare; "
    "prepare('dapo', Path(sys.argv[1]), Data(mirror=sys.argv[2]), model=Path(sys.argv[3]), evaluate=['dapo']); "
    "status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines()); "
    "print(status['VmHWM'].split()[0])"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mirror", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = pq.read_metadata(options.mirror / FILE).num_rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = _median_seconds(
            lambda number: _ours(options.mirror, options.model, folder),
            lambda number: _datasets(options.mirror, options.model, folder / f"cache_{number}"),
            options.repeats,
        )
        print(f"prepare                      {rows / ours:10,.0f} rows/s ({ours:.2f} s)")
        print(f"datasets.map, fewer checks   {rows / theirs:10,.0f} rows/s ({theirs:.2f} s)")
        print(f"ratio                        {theirs / ours:10.2f}")
        _print_copies(options.mirror, options.model, folder)


def _median_seconds(one: Callable[[int], None], other: Callable[[int], None], repeats: int) -> tuple[float, float]:
    """Of both in turn, so that whatever else the machine does is in both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats):
        for work, taken in zip((one, other), seconds, strict=True):
            start = time.perf_counter()
            work(number)
            taken.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _ours(mirror: Path, model: Path, folder: Path) -> None:
    normalised.cache_clear()  # a stage prepares once
    prepare(TASK, folder / TASK, Data(mirror=str(mirror)), model=model, evaluate=[TASK])


def _datasets(mirror: Path, model: Path, cache: Path) -> None:
    """The same file through load_dataset, map and filter, with a cache of its own so that nothing is found there."""
    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(model)
    task_row = get_task(TASK).load(Data(mirror=str(mirror), max_train=1)).splits["train"][0]
    seen: set[str] = set()
    rows = datasets.load_dataset("parquet", data_files=str(mirror / FILE), split="train", cache_dir=str(cache))
    rows = rows.map(lambda row, index: _row(row, index, task_row), with_indices=True, remove_columns=rows.column_names)
    rows = rows.filter(lambda row: _readable(task_row.verifier, row["reward_model"]["ground_truth"]))
    rows = rows.filter(lambda row: _is_first(row["prompt"][-1]["content"], seen))
    rows = rows.map(lambda batch: {"prompt_tokens": _tokens(tokenizer, batch["prompt"])}, batched=True)
    rows.to_parquet(cache / "train.parquet")


def _row(row: dict[str, Any], index: int, task_row: Row) -> dict[str, Any]:
    return {
        "data_source": task_row.data_source,
        "prompt": row["prompt"],
        "ability": task_row.ability,
        "reward_model": {"style": "rule", "ground_truth": row["reward_model"]["ground_truth"]},
        "extra_info": {"split": "train", "index": index, "question": row["prompt"][-1]["content"]},
        "verifier": task_row.verifier,
    }


def _readable(verifier: str, ground_truth: str) -> bool:
    try:
        get_verifier(verifier).check(ground_truth)
    except ValueError:
        return False
    return True


def _is_first(question: str, seen: set[str]) -> bool:
    before = len(seen)
    seen.add(question)
    return len(seen) > before


def _tokens(tokenizer: Any, prompts: list[list[dict[str, str]]]) -> list[int]:
    texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in prompts]
    return [len(token_ids) for token_ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def _print_copies(mirror: Path, model: Path, folder: Path) -> None:
    """One whole process, imports included, on a file that holds every row a hundred times."""
    table = pq.read_table(mirror / FILE)
    copies = folder / "mirror" / FILE
    copies.parent.mkdir(parents=True)
    with pq.ParquetWriter(copies, table.schema) as writer:
        for _ in range(COPIES):
            writer.write_table(table)
    rows = table.num_rows * COPIES
    del table
    start = time.perf_counter()
    arguments = [str(folder / TASK), str(folder / "mirror"), str(model)]
    done = subprocess.run([sys.executable, "-c", ONE_PROCESS, *arguments], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    peak = int(done.stdout) / 1024
    print(
        f"{rows:,} rows, {COPIES} copies of each: {seconds:.1f} s, {rows / seconds:,.0f} rows/s, peak {peak:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
