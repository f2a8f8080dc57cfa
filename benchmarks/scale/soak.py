"""A whole experiment of many long completions: memory by step, disk against the plan, and a resume in its middle.

    python -m benchmarks.scale soak --folder /tmp/soak 300x1024:all 300x256:10 > table.md

Each run is STEPSxCOMPLETIONS:KEEP (runtime.keep_rollouts), of 2,048 tokens and 16 completions a prompt, in a clone of its own below the
folder. Snakemake runs it, gets Ctrl-C in the middle of training, and is started again; a run that is there is measured alone. All of
dagrpo is at work but HTTP and the model: see long_answers.py.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.scale.engine import NAME
from benchmarks.scale.measuring import markdown
from tests.pipeline.snakemake import clones

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import parse

SAMPLES, TOKENS = 16, 2048
WARMING_UP = 10  # steps of a process before its memory is looked at
COLUMNS = (
    "steps x completions",
    "keep_rollouts",
    "seconds a step",
    "MiB at its first and last steps",
    "growth per 100 steps",
    "peak",
    "rollouts, GB",
    "bytes a token",
    "of the plan",
    "resume",
    "read until then, MB: first start, resume",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What one run is."""

    steps: int
    completions: int
    keep: str

    @classmethod
    def of(cls, text: str) -> "Shape":
        """Parse STEPSxCOMPLETIONS:KEEP."""
        shape, _, keep = text.partition(":")
        steps, _, completions = shape.partition("x")
        return cls(int(steps), int(completions), keep)

    @property
    def name(self) -> str:
        """Return the name of its experiment."""
        return f"soak_{self.steps}_{self.completions}_{self.keep}"


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the engine's log."""

    process: int
    what: str
    version: str
    time: float  # seconds since 1970
    resident: int  # KiB
    peak: int  # KiB
    read: int  # bytes


def table(arguments: Sequence[str]) -> str:
    """Run what is missing, measure all and return the table."""
    parser = argparse.ArgumentParser(
        prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Shape.of, metavar="STEPSxCOMPLETIONS:KEEP")
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args(arguments)
    return markdown(COLUMNS, [_row(shape, given.folder.resolve() / shape.name) for shape in given.runs])


def _row(shape: Shape, folder: Path) -> list[str]:
    if not (folder / "soak.json").exists():
        started = _run(shape, folder)
        (folder / "soak.json").write_text(json.dumps({"resumed": started}))
    resumed = json.loads((folder / "soak.json").read_text())["resumed"]
    before, after = _processes(folder)
    asked = [[note for note in notes if note.what == "sample"] for notes in (before, after)]
    seconds = [later.time - earlier.time for notes in asked for earlier, later in pairwise(notes)]
    warm = [notes[min(WARMING_UP, len(notes) - 2) :] for notes in asked]
    size = sum(path.stat().st_size for path in folder.glob(f"results/{shape.name}/runs/*/rollouts/step_*.parquet"))
    planned = next(item["bytes"] for item in _plan(folder)["disk"] if item["name"] == "rollouts")
    return [
        f"{shape.steps} x {shape.completions:,}",
        f"`{shape.keep}`",
        f"{statistics.median(seconds):.1f}",
        "; ".join(f"{notes[0].resident >> 10:,}, {notes[-1].resident >> 10:,}" for notes in warm),
        "; ".join(f"{_growth(notes):+.0f}" for notes in warm),
        f"{max(note.peak for notes in asked for note in notes) >> 10:,} MiB",
        f"{size / 1e9:.2f}",
        f"{size / shape.steps / shape.completions / TOKENS:.2f}",
        f"{size / planned:.2f}",
        f"{asked[1][0].time - resumed:.0f} s",
        f"{asked[0][0].read / 1e6:.0f}, {asked[1][0].read / 1e6:.0f}",
    ]


def _growth(notes: Sequence[Note]) -> float:
    """Return the MiB by which the fitted line of memory rises in 100 steps."""
    values = [note.resident / 1024 for note in notes]
    return float(np.polyfit(np.arange(len(values)), values, 1)[0] * 100)


def _run(shape: Shape, folder: Path) -> float:
    """Run an experiment, stopped in the middle; return when it was started again, in seconds since 1970."""
    new_clone(folder, params_of(shape.name, shape.steps, shape.completions // SAMPLES, TOKENS, shape.keep))
    first = start(folder, "snakemake", "--cores", "1", "target")
    middle = f".state/*/metrics/step_{shape.steps // 2:05d}.json"
    while not list(folder.glob(middle)):
        if first.poll() is not None:
            raise SystemExit((folder / "output.txt").read_text()[-4000:])
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGINT)
    first.wait()
    resumed = time.time()
    if start(folder, "snakemake", "--cores", "1", "target").wait():
        raise SystemExit((folder / "output.txt").read_text()[-4000:])
    return resumed


def params_of(name: str, steps: int, prompts: int, tokens: int, keep: str) -> Mapping[str, Any]:
    """Return the parameters of an experiment of the smallest model, of 10 test problems."""
    return {
        "experiment": {"name": name},
        "data": {"arithmetic": {"levels": ["sum_2_digit"], "train": 2000, "test": 10}},
        "model": {
            "fresh": {
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "intermediate_size": 16,
                "max_position_embeddings": tokens + 256,
            }
        },
        "sft": {"steps": 0},
        "rollout": {"max_new_tokens": tokens, "deterministic": False},
        "training": {
            "steps": steps,
            "prompts_per_step": prompts,
            "samples_per_prompt": SAMPLES,
            "mini_batches": 4,
        },
        "evaluation": {"sampling": {"samples": 2, "max_new_tokens": 64}, "scoring": {"bootstrap_draws": 200}},
        "runtime": {
            "keep_rollouts": int(keep) if keep.isdecimal() else keep,
            "engine": {"name": NAME},
            "training": {"threads": 1, "micro_batch_tokens": 65536},
        },
    }


def new_clone(folder: Path, params: Mapping[str, Any]) -> None:
    """Make a clone with an experiment in params.yaml."""
    clones.clone(folder)
    select(folder, params)


def select(folder: Path, params: Mapping[str, Any]) -> None:
    """Write the experiment to params.yaml of a clone."""
    (folder / "params.yaml").write_text(params_yaml(parse(dict(params))))
    if start(folder, "dagrpo", "generate").wait():
        raise SystemExit((folder / "output.txt").read_text()[-4000:])


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command in a clone, whose engine is of this package."""
    own = clones.environment(folder)
    return own | {"PYTHONPATH": f"{own['PYTHONPATH']}:{folder}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(folder: Path, *command: str) -> "subprocess.Popen[str]":
    """Start a command in a clone as the leader of a process group; its output goes to the file output.txt."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder),
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )


def _plan(folder: Path) -> Any:
    command = ("dagrpo", "plan", "--json")
    return json.loads(subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True).stdout)


def _processes(folder: Path) -> tuple[list[Note], list[Note]]:
    """Return the notes of the trainer before and after it was stopped."""
    (log,) = folder.glob("logs/**/train.server.log")
    notes = [_note(line) for line in log.read_text().splitlines()]
    first = [note for note in notes if note.process == notes[0].process]
    return first, notes[len(first) :]


def _note(line: str) -> Note:
    process, what, version, moment, resident, peak, read = line.split()
    return Note(int(process), what, version, float(moment), int(resident), int(peak), int(read))
