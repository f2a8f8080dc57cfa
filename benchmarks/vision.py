"""What pictures cost the trainer: a step with them against one with text of the same length, tower trained and frozen.

    OMP_NUM_THREADS=1 python -m benchmarks.vision

A fresh Qwen2.5-VL and a fresh Qwen3-VL of 1 to 2 million parameters take the same updates of made-up rollouts, 4 prompts with 8
samples each: prompts of text alone, and prompts of as many tokens of which 64 are a picture's. Two passes a step, old logprobs and
update, in micro-batches of 16. The kinds take turns; of each the fastest step after the first counts, by the processor time of
all threads. Memory is the peak of RssAnon of a process that takes two steps of one kind, above what it has before them.
"""

import argparse
import io
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from benchmarks.convert import AnonymousPeak
from PIL import Image

from dagrpo.algorithms.config import Algorithm
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.models.pictures import PictureProcessor
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.optimizer import make_optimizer
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import single_process

FAMILIES: tuple[Literal["qwen2_5_vl", "qwen3_vl"], ...] = ("qwen2_5_vl", "qwen3_vl")
PROMPTS, SAMPLES, MICRO_BATCH = 4, 8, 16
PROMPT, COMPLETION = 96, 48  # tokens
SIDE = 224  # pixels: 16 by 16 patches, 64 tokens
Kind = Literal["text", "trained", "frozen"]
KINDS: tuple[Kind, ...] = ("text", "trained", "frozen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one step."""

    seconds: float
    mebibytes: float


def main() -> None:
    """Print seconds, memory and their ratios to text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)  # folder of a model, kind: in a process of its own
    given = parser.parse_args()
    if given.memory:
        print(_memory_of(Path(given.memory[0]), given.memory[1]))
        return
    print(f"{torch.get_num_threads()} threads; a step is {PROMPTS * SAMPLES} sequences of {PROMPT + COMPLETION} tokens")
    print(f"{'family':12}{'step':10}{'seconds':>9}{'to text':>9}{'MiB':>8}{'to text':>9}")
    for family in FAMILIES:
        with TemporaryDirectory() as folder:
            _report(family, dict(_costs(_made(Path(folder) / "model", family), given.rounds)))


def _report(family: str, costs: dict[Kind, Cost]) -> None:
    text = costs["text"]
    for kind, cost in costs.items():
        slower, larger = cost.seconds / text.seconds, cost.mebibytes / text.mebibytes
        print(f"{family:12}{kind:10}{cost.seconds:9.2f}{slower:9.2f}{cost.mebibytes:8.0f}{larger:9.2f}")


def _made(folder: Path, family: Literal["qwen2_5_vl", "qwen3_vl"]) -> Path:
    shape = Fresh.model_validate({"vision": {"family": family, "patch_size": 14}, "max_position_embeddings": 512})
    make_model(folder, Model(fresh=shape, max_pixels=SIDE * SIDE))
    return folder


def _costs(model: Path, rounds: int) -> Iterator[tuple[Kind, Cost]]:
    """The kinds take turns, so that a busy minute is not one kind's alone."""
    steps = {kind: _Steps(model, kind) for kind in KINDS}
    seconds: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):  # the first warms up
        for kind, own in steps.items():
            seconds[kind].append(own.take(number))
    for kind, taken in seconds.items():
        command = [sys.executable, "-m", "benchmarks.vision", "--memory", str(model), kind]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        yield kind, Cost(seconds=min(taken[1:]), mebibytes=float(done.stdout.splitlines()[-1]))


def _memory_of(model: Path, kind: Kind) -> float:
    steps = _Steps(model, kind)
    with AnonymousPeak() as before:
        pass
    with AnonymousPeak() as peak:
        for number in range(2):
            steps.take(number)
    return peak.megabytes - before.megabytes


class _Steps:
    """A policy of its own for each kind of step."""

    def __init__(self, model: Path, kind: Kind) -> None:
        training = Training.model_validate({
            "prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "vision": "frozen" if kind == "frozen" else "trained",
        })  # fmt: skip
        world = single_process()
        policy = load_policy(model, world, training.vision)
        self._kind, self._processor = kind, PictureProcessor.of(model)
        self._update = PolicyUpdate(
            policy=policy,
            reference=None,
            optimizer=make_optimizer(policy, training),
            algorithm=Algorithm(),
            training=training,
            budget=Budget(sequences=MICRO_BATCH),
            temperature=1.0,
            max_new_tokens=COMPLETION,
            pad_token_id=0,
            world=world,
        )

    def take(self, number: int) -> float:
        """Processor seconds of a step of which no picture was seen before."""
        batch, start = self._rollouts(number), time.process_time()
        self._update.run(number, batch, self._update.compute_before(batch))
        return time.process_time() - start

    def _rollouts(self, number: int) -> Batch:
        drawn = torch.Generator().manual_seed(number)
        rows = [self._row(number * PROMPTS + prompt, drawn) for prompt in range(PROMPTS) for _ in range(SAMPLES)]
        mask = [[False] * PROMPT + [True] * COMPLETION] * len(rows)
        tokens = len(rows) * COMPLETION
        return Batch(
            sequences=TokenSequences.of([ids for ids, _ in rows], mask, [files for _, files in rows]),
            trajectories=torch.arange(len(rows)),
            rollout_logprobs=torch.full((tokens,), -5.0),
            positive=torch.ones(len(rows), dtype=torch.bool),
            advantages=torch.randn(tokens, generator=drawn),
        )

    def _row(self, prompt: int, drawn: torch.Generator) -> tuple[list[int], tuple[bytes, ...]]:
        text = torch.randint(4, 200, (PROMPT + COMPLETION,), generator=drawn).tolist()
        if self._kind == "text":
            return text, ()
        tokens, file = self._processor.tokens, _picture(prompt)
        shown = self._processor.expanded([tokens.start, tokens.image, tokens.end], [file])
        return [*shown, *text[len(shown) :]], (file,)


def _picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
