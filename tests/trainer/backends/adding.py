"""A backend whose program adds a number to every weight in each step: no torch, and no import of this package.

`python adding.py JOB OUT ADDED` is the program.
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors.numpy import load_file, save_file

JOB, OUT, METRICS = "job.json", "trained", "metrics.jsonl"


def main(job: Path, out: Path, added: float) -> None:
    """Train, and leave a checkpoint in the Hugging Face layout."""
    given = json.loads(job.read_text())
    out.mkdir(parents=True)
    for path in Path(given["initial"]).iterdir():
        if path.name in {"config.json", "generation_config.json"} or "token" in path.name:
            shutil.copy(path, out)
    weights = load_file(Path(given["initial"]) / "model.safetensors")
    for step in range(1, given["training"]["steps"] + 1):
        weights = {name: value + value.dtype.type(added) for name, value in weights.items()}
        with (out.parent / METRICS).open("a") as metrics:
            metrics.write(json.dumps({"step": step, "reward/mean": step / 4, "seed": given["seed"]}) + "\n")
    save_file(weights, out / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
