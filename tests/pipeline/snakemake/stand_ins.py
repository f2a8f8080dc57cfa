"""The tiny experiment with stand-ins for other trainers (packages/*/tests)."""

import sys
from pathlib import Path
from typing import Any

from tests.pipeline.snakemake import clones
from tests.trainer.foreign_runs import STAND_INS

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse

STEPS, HANGS_AFTER = 4, 3
UPDATES = 2  # of a step
CHANGES = {
    "rollout": {"deterministic": False, "dtype": "bfloat16"},
    "training": {"dtype": "bfloat16", "evaluate_every": 0, "steps": STEPS, "mini_batches": UPDATES},
    "runtime": {"training": {"save_every": 2, "processes": 2}},
}


PICTURES = {  # instead of sums: small ones, which are drawn
    "experiment": {"train": "shapes", "evaluate": ["shapes"], "tasks": ["shapes"]},
    "data": {"shapes": {"train": 40, "test": 12}},
    "model": {
        "max_pixels": 7056,
        "fresh": {"max_position_embeddings": 256, "vision": {"family": "qwen2_5_vl", "depth": 2}},
    },
}


def write_params(folder: Path, trainer: str, changes: dict[str, Any] | None = None) -> None:
    """Give a clone a trainer, which hangs after HANGS_AFTER steps unless it has resumed, and changed parameters."""
    stand_in, python = STAND_INS[trainer], folder / "trainer-python"
    last = HANGS_AFTER * (UPDATES if trainer == "megatron_lm" else 1)
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{stand_in}:$PYTHONPATH" STAND_IN_HANGS_AFTER={last} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    own = {
        "training": {"backend": {"name": trainer}},
        "runtime": {"backend": {"python": str(python), "source": str(stand_in)}},
    }
    params = parse(merged(merged(clones.TINY, CHANGES), merged(own, changes or {})))
    (folder / "params.yaml").write_text(params_yaml(params))
    clones.run(folder, "dagrpo", "generate")


def lines_of(folder: Path) -> list[int]:
    """Count the steps that each attempt of the trainer has reported."""
    return [len(path.read_text().splitlines()) for path in sorted(folder.glob(".state/*/attempt_*.jsonl"))]


def wait_until_it_hangs(folder: Path) -> None:
    """Return when the trainer of a clone has reported its last step before it hangs."""
    clones.wait_until(folder, lambda: max(lines_of(folder), default=0) >= HANGS_AFTER, seconds=900)
