"""What piles up: server starts, generate rounds and records in MLflow, with this process and the machine sampled.

    PYTHONPATH=. python benchmarks/soak.py --starts 500 --rounds 2000 --records 200
    PYTHONPATH=. python benchmarks/soak.py --starts 5 --rounds 200 --records 20

A line is fitted to each count over the repetitions. Growth is flat where the line, over all repetitions, rises by less than
its tolerance; the first tenth is warming up and left out. Files in /dev/shm are those of the whole machine, unless this
command gives it one of its own:

    unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /dev/shm && python benchmarks/soak.py'
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch

from dagrpo.core.types import SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.utils.files import sha256_of, write_json
from dagrpo_mlflow.sync import sync

ENGINE = sglang.Config(max_total_tokens=8192, max_running_requests=64)
WARMING_UP = 0.1
# A long soak prints its table so often, so that one that is stopped early has said what it saw.
SAMPLES_A_TABLE = 100
# How much each count may rise over all repetitions; of what every repetition could leave one, less than one in ten.
TOLERANCES = {
    "open files": 2.0,
    "threads": 2.0,
    "children": 1.0,
    "MB of memory": 64.0,
    "MB of children": 64.0,
    "in /dev/shm": 2.0,
    "in /tmp": 2.0,
}


@dataclass(slots=True)
class Samples:
    """Counts after each repetition of one kind of work."""

    label: str
    rows: list[Mapping[str, float]] = field(default_factory=list)

    def take(self) -> None:
        """What this process, and the children that are still there, hold now."""
        process = psutil.Process()
        children = process.children(recursive=True)
        self.rows.append(
            {
                "open files": process.num_fds(),
                "threads": threading.active_count(),
                "children": len(children),
                "MB of memory": process.memory_info().rss / 1e6,
                "MB of children": sum(_resident_bytes(child) for child in children) / 1e6,
                "in /dev/shm": len(os.listdir("/dev/shm")),
                "in /tmp": len([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("dagrpo-")]),
            }
        )

    def table(self) -> list[str]:
        """A line per count: first, last, how much the fitted line rises, and whether that is flat."""
        return [self._line(name, tolerance) for name, tolerance in TOLERANCES.items()]

    def _line(self, name: str, tolerance: float) -> str:
        values = np.array([row[name] for row in self.rows[int(len(self.rows) * WARMING_UP) :]])
        slope = np.polyfit(np.arange(len(values)), values, 1)[0] if len(values) > 1 else 0.0
        rise = slope * (len(values) - 1)
        verdict = "flat" if rise <= tolerance else f"not flat: {slope:+.3f} each"
        return (
            f"{self.label:16} {len(self.rows):6d} {name:14} {values[0]:9.1f} {values[-1]:9.1f} {rise:+9.1f}  {verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--records", type=int, default=200)
    options = parser.parse_args()
    print(f"{'work':16} {'times':>6} {'count':14} {'first':>9} {'last':>9} {'rise':>9}")
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        os.chdir(scratch)
        model = Path(scratch) / "tiny"
        make_fresh(model, Fresh(), torch.float32)
        _report("server starts", options.starts, lambda: _start(model))
        with open_engine(model, ENGINE, Path("server.log"), dtype="float32", deterministic=True) as engine:
            _report("generate rounds", options.rounds, lambda: engine.generate(_requests(), lockstep=True))
        _report("records", options.records, _record)


def _report(label: str, times: int, work: Callable[[], object]) -> None:
    """Do it so many times, sampled after each, and print what came of it, also on the way."""
    samples = Samples(label)
    for done in range(1, times + 1):
        work()
        samples.take()
        if done == times or done % SAMPLES_A_TABLE == 0:
            print(*samples.table(), sep="\n", flush=True)


def _start(model: Path) -> None:
    with open_engine(model, ENGINE, Path("server.log"), dtype="float32", deterministic=True) as engine:
        engine.generate(_requests()[:1], lockstep=True)


def _requests() -> list[SamplingRequest]:
    return [
        SamplingRequest(
            input_ids=tuple(range(20, 32)),
            seed=sampling_seed(0, number),
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_new_tokens=8,
        )
        for number in range(16)
    ]


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # it has just ended
        return 0


def _record() -> None:
    """One execution, brought into the embedded MLflow. The working directory is a folder for temporary files."""
    path = "results/soak/runs/seed_0/scores.json"
    write_json(Path(path), {"time": time.time_ns()})
    record = {
        "stage": "census",
        "experiment": "soak",
        "seed": 0,
        "params": {"steps": 3},
        "code": "c" * 64,
        "key": sha256_of(Path(path)),
        "inputs": {"data/soak/train.parquet": "1" * 64},
        "outputs": {path: sha256_of(Path(path))},
    }
    write_json(Path(path).with_name("scores.provenance.json"), record)
    assert sync() == 1, "not recorded"


if __name__ == "__main__":
    main()
