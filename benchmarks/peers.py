"""GRPO on a CPU: this trainer with SGLang against TRL or torchtune.

    make oracle     # once: TRL's environment; benchmarks/peers_torchtune.py says how torchtune's is made
    python -m benchmarks.peers MODEL --prompts 4 --samples 4 --tokens 64 [--dtype bfloat16]
    python -m benchmarks.peers MODEL --prompts 4 --samples 4 --tokens 64 --peer torchtune --peer-python PLACE/bin/python
    python -m benchmarks.peers MODEL --prompts 16 --samples 8 --tokens 16 --terms 2 --steps 40 --learn 0.001

Both get the same model folder, the same questions in its chat template, as many samples, completions of at most as many
tokens at temperature 1, and one update per step on all completions at once. The reward differs within groups: whether the text
has an even number of characters; with `--learn`, whether its last number is the sum, and then both trained policies are asked
new sums by transformers, greedily. A ratio is of the medians of a run; of several runs their median counts, with the range.

A completion may end early: the mean lengths are printed. The first step warms up, and in the last one memory is read, which slows
processes down; of the others the median counts. Processor seconds are of all processes of a side, its server included; memory is
the peak of their anonymous and shared memory together, where a page that several share counts once. With `--staleness 1` ours
samples while it updates, and `generation` is what it waited for. `rest` is grading,
gates and records here, and scoring and preparation there.
"""

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.rollout.problems import task_row

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import Row
from dagrpo.data.schema import to_table
from dagrpo.rewards.components import Component, Weighted
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun, files_in
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import write_parquet

PEER_PYTHON = Path(os.environ.get("DAGRPO_OBJECTIVES_PYTHON", ".venv-objectives/bin/python"))
PARTS = ("wall", "processor", "generation", "update", "weight_sync", "rest", "tokens")
HELD_OUT = 512  # sums that neither side has trained on
NUMBER = re.compile(r"-?[0-9]+")
Figures = Mapping[str, float]


def even(graded: GradedTrajectory, config: Weighted) -> float:
    """Return 1 for a text with an even number of characters."""
    return float(len(graded.trajectory.text) % 2 == 0)


def right(graded: GradedTrajectory, config: Weighted) -> float:
    """Return 1 for a text whose last number is the answer."""
    trajectory = graded.trajectory
    return float(NUMBER.findall(trajectory.text)[-1:] == [trajectory.prompt.row.ground_truth])


EVEN = Component(config=Weighted, function=even, limits=lambda config: (0.0, 1.0))
RIGHT = Component(config=Weighted, function=right, limits=lambda config: (0.0, 1.0))


def main() -> None:
    """Print both sides and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--terms", type=int, default=30, help="of the sum that each question asks for")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--learn", type=float, help="learning rate; none: 1e-6, a reward by length, and no test")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--micro-batch-tokens", type=int, help="ours; none: all completions at once, as the peer's")
    parser.add_argument(
        "--share-prompts", action=argparse.BooleanOptionalAction, help="ours: a group's prompt computed once, or not"
    )
    parser.add_argument("--staleness", type=int, default=0, help="ours: training.staleness")
    parser.add_argument("--threads", type=int, help="ours: of the trainer; none: as torch has them")
    parser.add_argument("--engine-threads", type=int, default=1, help="ours: runtime.engine.threads")
    parser.add_argument("--replicas", type=int, default=1, help="ours: runtime.engine.replicas")
    parser.add_argument("--ours-only", action="store_true", help="without the peer")
    parser.add_argument("--peer", choices=["trl", "torchtune"], default="trl")
    parser.add_argument("--peer-python", type=Path, default=PEER_PYTHON, help="of the environment that has the peer")
    parser.add_argument("--side", help=argparse.SUPPRESS)  # settings: ours, in a process of its own
    given = parser.parse_args()
    if given.side:
        _train(json.loads(given.side))
        return
    runs = [_run_both(given, number) for number in range(given.runs)]
    print(f"{'':12}{'ours':>10}{given.peer:>10}  {given.peer} / ours")
    for part in runs[0][0]:
        ours, theirs = ([run[side].get(part, math.nan) for run in runs] for side in (0, 1))
        ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True) if a)
        shown = f"  {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
        print(f"{part:12}{statistics.median(ours):10.3f}{statistics.median(theirs):10.3f}{shown}", flush=True)


def _run_both(given: argparse.Namespace, number: int) -> tuple[Figures, Figures]:
    """Run each side once, in turn, and return its figures; the peer's are missing with --ours-only."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(given, Path(folder), number)
        peer = [str(given.peer_python), "-m", f"benchmarks.peers_{given.peer}"]
        own = [sys.executable, "-m", "benchmarks.peers", str(given.model), "--side"]
        sides = [own] if given.ours_only else [own, peer]
        found = [_measured([*side, json.dumps(settings)], given.steps) for side in sides]
        if given.learn:
            for name, figures in zip(("ours", "theirs"), found, strict=False):
                asked = settings | {"model": str(Path(folder, name, "trained"))}
                test = [sys.executable, "-m", "benchmarks.peers_sums", json.dumps(asked)]
                figures["right"] = json.loads(subprocess.check_output(test))
    ours, theirs = found[0], found[1] if len(found) > 1 else {}
    print({"run": number, "ours": ours, "theirs": theirs}, flush=True)
    return ours, theirs


def _settings(given: argparse.Namespace, folder: Path, number: int) -> dict[str, Any]:
    """Return the settings of both sides, as values of JSON."""
    draw = random.Random(number)
    count, most = given.prompts * given.steps, 9 if given.terms > 2 else 49
    sums = [[draw.randint(0, most) for _ in range(given.terms)] for _ in range(count + HELD_OUT)]
    return {
        "model": str(given.model.resolve()),
        "folder": str(folder),
        "sums": sums[:count],
        "held_out": [each for each in sums[count:] if each not in sums[:count]],
        "learning_rate": given.learn or 1e-6,
        "learn": given.learn is not None,
        "seed": number,
        "prompts": given.prompts,
        "samples": given.samples,
        "tokens": given.tokens,
        "steps": given.steps,
        "dtype": given.dtype,
        "micro_batch_tokens": given.micro_batch_tokens,
        "share_prompts": given.share_prompts,
        "staleness": given.staleness,
        "threads": given.threads,
        "engine_threads": given.engine_threads,
        "replicas": given.replicas,
    }


def _measured(command: list[str], steps: int) -> dict[str, float]:
    """Run a side; return the medians of its steps but the first and last, and the peak of its processes' memory in the last."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        peak = _Peak(process.pid)
        assert process.stdout is not None
        begun, lines = time.perf_counter(), list[str]()
        for line in process.stdout:
            lines += [line] if line.startswith('{"') else []  # the peer prints its own in other quotes
            if len(lines) == steps - 1:
                peak.start()
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    timed: list[Figures] = [json.loads(line) for line in lines][1:-1]
    found = {part: statistics.median(step[part] for step in timed) for part in PARTS}
    return found | {"MiB": peak.mebibytes, "whole": time.perf_counter() - begun}


class _Peak:
    """Peak of the memory of a process and all below it together, in MiB, from `start` until the process ends."""

    def __init__(self, pid: int) -> None:
        self.mebibytes = 0.0
        self._process = psutil.Process(pid)

    def start(self) -> None:
        """Read memory from now on, again and again."""
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            try:
                tree = [self._process, *self._process.children(recursive=True)]
                self.mebibytes = max(self.mebibytes, sum(map(_memory, tree)))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue  # one has ended meanwhile
            time.sleep(0.2)


def _memory(process: psutil.Process) -> float:
    """Return the anonymous and shared memory of a process in MiB; a page of several processes counts by its share."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))) / 1024


def _processor_seconds() -> float:
    """Sum user and system time of this process and of all below it that run."""
    this = psutil.Process()
    times = [each.cpu_times() for each in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _train(given: dict[str, Any]) -> None:
    """Train our side, a whole run; print a line of JSON for each step."""
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    run, before = _run(given), [_processor_seconds()]

    def report(step: int, metrics: Figures) -> None:
        seconds = {name: metrics[f"timing/{name}_seconds"] for name in ("rollout", "update", "weight_sync")}
        rest = sum(metrics.get(f"timing/{name}_seconds", 0.0) for name in ("gates", "rewards", "record"))
        now = _processor_seconds()
        figures = {
            "wall": sum(seconds.values()) + rest,
            "processor": now - before[-1],
            "generation": seconds["rollout"],
            "update": seconds["update"],
            "weight_sync": seconds["weight_sync"],
            "rest": rest,
            "tokens": metrics["rollout/length_mean"],
        }
        before.append(now)
        print(json.dumps(figures), flush=True)

    train(run, report, single_process())
    if given["learn"]:
        export(run.policy, Path(given["folder"], "ours", "trained"), Checkpoint())


def _run(given: dict[str, Any]) -> TrainingRun:
    folder = Path(given["folder"]) / "ours"
    folder.mkdir()
    convert(Path(given["model"]), folder / "initial", Checkpoint())
    write_parquet(folder / "train.parquet", to_table([_row(*each) for each in enumerate(given["sums"])]))
    shape = {
        "steps": given["steps"],
        "prompts_per_step": given["prompts"],
        "samples_per_prompt": given["samples"],
        "max_prompt_tokens": 4096,
        "learning_rate": given["learning_rate"],
        "dtype": given["dtype"],
        "staleness": given["staleness"],
        "digests_every": 0,
        "gates": {"truncated": None, "missing_answers": None},
    }
    parallel = {"max_running_requests": max(given["prompts"] * given["samples"], 2), "max_total_tokens": 32768}
    parallel |= {"threads": given["engine_threads"], "replicas": given["replicas"]}
    component = "RIGHT" if given["learn"] else "EVEN"
    own = {"save_every": given["steps"], "keep_states": 0}
    own |= {name: given[name] for name in ("micro_batch_tokens", "share_prompts")}
    return TrainingRun(
        initial=folder / "initial",
        train_splits={"task": folder / "train.parquet"},
        seed=given["seed"],
        rollout=Rollout.model_validate({"max_new_tokens": given["tokens"], "dtype": given["dtype"]}),
        reward=Reward.model_validate({"components": {f"benchmarks.peers:{component}": {"weight": 1.0}}}),
        algorithm=Algorithm(),
        training=Training.model_validate(shape),
        runtime=Runtime.model_validate({"training": own, "engine": parallel}),
        **files_in(folder),
    )


def _row(number: int, terms: list[int]) -> Row:
    truth = str(sum(terms))
    question = "+".join(map(str, terms)) + "=?"
    return task_row(question, index=number, answer=f"#### {truth}", ground_truth=truth, data_source="benchmark")


if __name__ == "__main__":
    main()
