"""What a step's rollout table takes on disk, while it is built, and while the report reads it.

    python -m benchmarks.scale rollouts --completions 64 256 1024 > table.md

Completions of 4,096 tokens with made-up words and random logprobs, 16 to a prompt. Memory is the rise of the process's anonymous
memory.
"""

import argparse
import gc
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.scale.measuring import exponent, markdown, seconds_of

from dagrpo.core.trajectory import GradedTrajectory, Prompt, TokenSample, Trajectory
from dagrpo.core.types import Row, Score
from dagrpo.report.attempt import attempt_of
from dagrpo.report.rollouts import COLUMNS
from dagrpo.report.samples import best_and_worst
from dagrpo.rollout.attempts_file import AttemptsFile, kept_rollouts, write_attempts
from dagrpo.rollout.config import KeepRollouts
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.metrics.step import rollout_rows

GROUP, LENGTH, PROMPT = 16, 4096, 150  # completions, tokens, tokens
COLUMNS_OF_TABLE = (
    "completions of 4,096 tokens",
    "bytes a token: all",
    "rounded",
    "best_and_worst",
    "none",
    "build the table",
    "memory a token",
    "read and choose for the report",
    "memory",
)
KEPT: tuple[KeepRollouts, ...] = ("all", "rounded", "best_and_worst", "none")


def table(arguments: Sequence[str]) -> str:
    """Measure at each number of completions and return the table, with exponents in its last row."""
    parser = argparse.ArgumentParser(prog="rollouts", description=__doc__)
    parser.add_argument("--completions", type=int, nargs="+", default=[64, 256, 1024])
    sizes = parser.parse_args(arguments).completions
    measured = [_measured(size) for size in sizes]
    rows = [
        [
            size,
            *(f"{each:.2f}" for each in bytes_),
            f"{built:.2f} s",
            f"{memory:.0f} B",
            f"{read:.2f} s",
            f"{used:.0f} MiB",
        ]
        for size, (bytes_, built, memory, read, used) in zip(sizes, measured, strict=True)
    ]
    grown = [exponent(sizes, [row[place] for row in measured]) for place in (1, 3)]  # type: ignore[misc]
    return markdown(COLUMNS_OF_TABLE, [*rows, ["exponent", *[""] * 4, f"{grown[0]:.2f}", "", f"{grown[1]:.2f}", ""]])


def _measured(count: int) -> tuple[list[float], float, float, float, float]:
    """Return bytes a token by what is kept, seconds and bytes a token of building, seconds and MiB of reading."""
    rollouts, logprobs = made_up(count)
    rollout_rows(*made_up(GROUP))  # imports and first allocations
    tokens = count * LENGTH
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step_00001.parquet")
        with rise() as built:
            seconds = seconds_of(lambda: rollout_rows(rollouts, logprobs))
        whole = rollout_rows(rollouts, logprobs)
        bytes_ = []
        for keep in reversed(KEPT):
            write_attempts(path, kept_rollouts(whole, keep, 2))
            bytes_.append(path.stat().st_size / tokens)
        del whole
        with rise() as read:
            chosen = seconds_of(lambda: read_as_the_report(path))
    return bytes_[::-1], seconds, built[0] / tokens, chosen, read[0] / 2**20


def read_as_the_report(path: Path) -> None:
    """Read a step's short columns, and the three best and worst trajectories."""
    file = AttemptsFile(path)
    file.short.select(COLUMNS)
    for positions in best_and_worst(file.short, 3, 3):
        [attempt_of(row) for row in file.rows_of(file.short, positions)]


@contextmanager
def rise() -> Iterator[list[int]]:
    """Yield a list whose only number is, after the block, how many bytes anonymous memory rose inside."""
    gc.collect()
    before, peak, ended = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[0] = max(peak[0], _anonymous() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield peak
    ended.set()
    watcher.join()


def _anonymous() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def made_up(count: int, length: int = LENGTH) -> tuple[Rollouts, torch.Tensor]:
    """Return the rollouts of a step, `count` completions of `length` tokens, and the trainer's logprobs of their tokens."""
    random = np.random.default_rng(0)
    words = [bytes(random.integers(97, 123, random.integers(2, 9)).astype(np.uint8)).decode() for _ in range(20_000)]
    graded = [_graded(place, length, words, random) for place in range(count)]
    rollouts = Rollouts(
        step=1,
        group_size=GROUP,
        graded=tuple(graded),
        rewards=torch.tensor([each.score.reward for each in graded]),
        components={},
    )
    advantages = (rollouts.rewards - rollouts.rewards.mean()).repeat_interleave(length)
    trainer = torch.tensor(rollouts.logprobs) + 1e-3 * torch.from_numpy(random.standard_normal(count * length))
    return replace(rollouts, advantages=advantages), trainer.float()


def _graded(place: int, length: int, words: Sequence[str], random: np.random.Generator) -> GradedTrajectory:
    row = Row(
        task="dapo_math",
        split="train",
        index=place // GROUP,
        prompt=({"role": "user", "content": "q" * 400},),
        question="q" * 400,
        answer="1",
        ground_truth="1",
        data_source="d",
        verifier="math",
    )
    prompt = Prompt(index=place // GROUP, row=row, text="q" * 400, token_ids=(7,) * PROMPT)
    ids = tuple(np.minimum(random.zipf(1.3, length), 151_000).tolist())
    sample = TokenSample(
        token_ids=prompt.token_ids + ids,
        loss_mask=(False,) * PROMPT + (True,) * length,
        logprobs=(0.0,) * PROMPT + tuple((-random.exponential(0.3, length)).tolist()),
        weight_version="step_0",
    )
    text = " ".join(words[token % len(words)] for token in ids)
    reward = float(random.random() < 0.5)
    return GradedTrajectory(
        trajectory=Trajectory(
            prompt=prompt,
            sample_index=place % GROUP,
            sampling_seed=place,
            samples=(sample,),
            text=text,
            finish_reason="stop",
            messages=({"role": "assistant", "content": text},),
        ),
        score=Score(extracted="1", verdict="right", verifier="math", reward=reward, components={"accuracy": reward}),
    )
