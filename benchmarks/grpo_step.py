"""A GRPO step on a CPU: this trainer with SGLang against TRL's GRPOTrainer with transformers' generate, in one run.

    make oracle     # once: the peer's environment
    python -m benchmarks.grpo_step MODEL --prompts 4 --samples 4 --tokens 64 [--dtype bfloat16]

Both get the same model folder, the same questions in its chat template, as many samples, completions of at most as many
tokens at temperature 1, a reward that differs within groups (whether the text has an even number of characters) and one
update per step on all completions at once. A completion may end early: the mean lengths are printed. The first step warms up;
of the others the median counts. Processor seconds are of all processes of a side, its server included; memory is the peak
of their anonymous memory together. With `--staleness 1` ours samples while it updates, and
`generation` is what it waited for. `rest` is grading, gates and records here, and scoring and preparation there.
"""

import argparse
import json
import os
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
from dagrpo.checkpoints.convert import convert
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
PARTS = ("wall", "processor", "generation", "update", "hand_over", "rest", "tokens")
Figures = Mapping[str, float]


def even(graded: GradedTrajectory, config: Weighted) -> float:
    """1 for a text with an even number of characters."""
    return float(len(graded.trajectory.text) % 2 == 0)


EVEN = Component(config=Weighted, function=even, limits=lambda config: (0.0, 1.0))


def main() -> None:
    """Print both sides and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--terms", type=int, default=30, help="of the sum that each question asks for")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--micro-batch-tokens", type=int, help="ours; none: all completions at once, as the peer's")
    parser.add_argument(
        "--share-prompts", action=argparse.BooleanOptionalAction, help="ours: a group's prompt computed once, or not"
    )
    parser.add_argument("--staleness", type=int, default=0, help="ours: training.staleness")
    parser.add_argument("--threads", type=int, help="ours: of the trainer; none: as torch has them")
    parser.add_argument("--engine-threads", type=int, default=1, help="ours: runtime.engine.threads")
    parser.add_argument("--ours-only", action="store_true", help="without the peer")
    parser.add_argument("--peer-python", type=Path, default=PEER_PYTHON)
    parser.add_argument("--side", help=argparse.SUPPRESS)  # settings: ours, in a process of its own
    given = parser.parse_args()
    if given.side:
        _train(json.loads(given.side))
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(given, Path(folder))
        ours = _measured(
            [sys.executable, "-m", "benchmarks.grpo_step", str(given.model), "--side", json.dumps(settings)]
        )
        if given.ours_only:
            print({part: round(value, 2) for part, value in ours.items()})
            return
        peer = Path(__file__).with_name("grpo_step_peer.py")
        theirs = _measured([str(given.peer_python), str(peer), json.dumps(settings)])
    print(f"{'':12}{'ours':>10}{'TRL':>10}{'TRL / ours':>12}")
    for part in (*PARTS, "MiB"):
        ratio = f"{theirs[part] / ours[part]:12.2f}" if ours[part] and part != "tokens" else ""
        print(f"{part:12}{ours[part]:10.2f}{theirs[part]:10.2f}{ratio}")


def _settings(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What both sides get, as JSON can say it."""
    count = given.prompts * given.steps
    questions = ["+".join(str((7 * row + term) % 10) for term in range(given.terms)) + "=?" for row in range(count)]
    return {
        "model": str(given.model.resolve()),
        "folder": str(folder),
        "questions": questions,
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
    }


def _measured(command: list[str]) -> dict[str, float]:
    """The medians of a side's steps after the first, and the peak of its processes' memory."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        peak = _Peak(process.pid)
        assert process.stdout is not None
        lines = [line for line in process.stdout if line.startswith('{"')]  # the peer prints its own in other quotes
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    steps: list[Figures] = [json.loads(line) for line in lines][1:]
    return {part: statistics.median(step[part] for step in steps) for part in PARTS} | {"MiB": peak.mebibytes}


class _Peak:
    """The most anonymous memory of a process and all below it together, in MiB, until the process ends."""

    def __init__(self, pid: int) -> None:
        self.mebibytes = 0.0
        self._process = psutil.Process(pid)
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            try:
                tree = [self._process, *self._process.children(recursive=True)]
                self.mebibytes = max(self.mebibytes, sum(map(_anonymous, tree)))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue  # one has ended meanwhile
            time.sleep(0.2)


def _anonymous(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:")) / 1024


def _processor_seconds() -> float:
    """User and system time of this process and of all below it that run."""
    this = psutil.Process()
    times = [each.cpu_times() for each in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def _train(given: dict[str, Any]) -> None:
    """Our side: a whole run of the trainer, a line of JSON for each step."""
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    run, before = _run(given), [_processor_seconds()]

    def report(step: int, metrics: Figures) -> None:
        seconds = {name: metrics[f"timing/{name}_seconds"] for name in ("rollout", "update", "hand_over")}
        rest = sum(metrics.get(f"timing/{name}_seconds", 0.0) for name in ("gates", "rewards", "record"))
        now = _processor_seconds()
        told = {
            "wall": sum(seconds.values()) + rest,
            "processor": now - before[-1],
            "generation": seconds["rollout"],
            "update": seconds["update"],
            "hand_over": seconds["hand_over"],
            "rest": rest,
            "tokens": metrics["rollout/length_mean"],
        }
        before.append(now)
        print(json.dumps(told), flush=True)

    train(run, report, single_process())


def _run(given: dict[str, Any]) -> TrainingRun:
    folder = Path(given["folder"]) / "ours"
    folder.mkdir()
    convert(Path(given["model"]), folder / "initial", Checkpoint())
    write_parquet(folder / "train.parquet", to_table([_row(*each) for each in enumerate(given["questions"])]))
    shape = {
        "steps": given["steps"],
        "prompts_per_step": given["prompts"],
        "samples_per_prompt": given["samples"],
        "max_prompt_tokens": 4096,
        "learning_rate": 1e-6,
        "dtype": given["dtype"],
        "staleness": given["staleness"],
        "digests_every": 0,
        "gates": {"truncated": None, "missing_answers": None},
    }
    parallel = {"max_running_requests": max(given["prompts"] * given["samples"], 2), "max_total_tokens": 32768}
    parallel["threads"] = given["engine_threads"]
    own = {"save_every": given["steps"], "keep_states": 0}
    own |= {name: given[name] for name in ("micro_batch_tokens", "share_prompts")}
    return TrainingRun(
        initial=folder / "initial",
        train_split=folder / "train.parquet",
        seed=7,
        rollout=Rollout.model_validate({"max_new_tokens": given["tokens"], "dtype": given["dtype"]}),
        reward=Reward.model_validate({"components": {"benchmarks.grpo_step:EVEN": {"weight": 1.0}}}),
        algorithm=Algorithm(),
        training=Training.model_validate(shape),
        runtime=Runtime.model_validate({"training": own, "engine": parallel}),
        **files_in(folder),
    )


def _row(number: int, question: str) -> Row:
    return task_row(question, index=number, answer="#### 0", ground_truth="0", data_source="benchmark")


if __name__ == "__main__":
    main()
