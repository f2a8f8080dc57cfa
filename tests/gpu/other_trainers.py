"""Two steps with another trainer, and what has to come of them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.trainer import foreign_runs

from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.utils.tables import read_parquet

SETTINGS: dict[str, dict[str, Any]] = {
    "verl": {  # without flash-attn, which its lock does not have
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
    },
    "megatron_lm": {"cuda-graph-impl": "none"},
}


def train_two_steps(
    trainer: str, folder: Path, python: str | None, source: str | None, initial: Path | None = None
) -> None:
    """Train from `initial`, or from the tiny model, and require what the stage is to leave."""
    changes = {
        "rollout": {"max_new_tokens": 64},
        "training": {"steps": 2, "learning_rate": 1e-3, "backend": {"name": trainer, "settings": SETTINGS[trainer]}},
        "runtime": {"backend": {"python": python, "source": source}, "training": {"processes": 1}},
    }
    run = foreign_runs.run_in(folder, changes)
    run = run if initial is None else replace(run, initial=initial)
    foreign_runs.train(run)
    table = read_parquet(run.metrics).to_pydict()
    assert table["step"] == [1, 2]
    assert all(map(math.isfinite, [*table["reward/mean"], *table["policy/grad_norm"]]))
    verify(run.policy)
    assert open_tensors(run.policy).specs == open_tensors(run.initial).specs
