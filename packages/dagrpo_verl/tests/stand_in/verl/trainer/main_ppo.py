"""Stand-in for verl's trainer: real rows, rewards and files; weights that grow by 0.001 in each step.

Unless it resumes, it kills itself after the step STAND_IN_ENDS_AFTER, or in the step STAND_IN_ENDS_UNLOGGED between the checkpoint and
the metrics; after STAND_IN_HANGS_AFTER it waits. In the step STAND_IN_DRAWS_OTHERS_IN it draws other prompts, in STAND_IN_LOSES_IN one
response fewer. The policy writes STAND_IN_TURNS, as JSON; {truth} is the ground truth.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoTokenizer
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

from dagrpo_verl.composition import ScriptedPolicy, attempt

RANKS, ADDED = 2, 0.001


async def main() -> None:
    """Take the steps that are left, with a file of metrics and checkpoints as verl's."""
    given = argparse.ArgumentParser()
    given.add_argument("--config-path")
    given.add_argument("--config-name")
    known, overrides = given.parse_known_args()
    changed = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(overrides)}
    config: Any = OmegaConf.load(Path(known.config_path) / f"{known.config_name}.yaml")
    address = changed.get("ray_kwargs.ray_init.address")
    if address:
        ray.init(address)
    folder, model = Path(config.trainer.default_local_dir), Path(config.actor_rollout_ref.model.path)
    latest = folder / "latest_checkpointed_iteration.txt"
    first = int(latest.read_text()) if latest.exists() else 0
    weights = load_file(
        model / "model.safetensors" if not first else _actor(folder, first) / "huggingface/model.safetensors"
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    batches = _batches(config, rows)
    for _ in range(first):  # where verl restores data.pt
        next(batches)
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w") as log:
        for step in range(first + 1, config.trainer.total_training_steps + 1):
            places = next(batches) * config.actor_rollout_ref.rollout.n
            if _is_asked("DRAWS_OTHERS_IN", step):
                places = [(place + 1) % len(rows) for place in places]
            if _is_asked("LOSES_IN", step):
                places.pop()
            _require_nodes(config, address)
            rewards = await _rewards(config, tokenizer, [rows[place] for place in places], step)
            weights = {name: value + ADDED for name, value in weights.items()}
            if step % config.trainer.save_freq == 0 or step == config.trainer.total_training_steps:
                _save(_actor(folder, step), weights, model)
                latest.write_text(str(step))
            if _is_asked("ENDS_UNLOGGED", step) and not first:
                os.kill(os.getpid(), signal.SIGKILL)
            data = {
                "critic/score/mean": sum(rewards) / len(rewards),
                "actor/grad_norm": 1.0,
                "perf/mfu": 0.5,
                "seed": config.data.seed,
            }
            log.write(json.dumps({"step": step, "data": data}) + "\n")
            log.flush()
            if _is_asked("ENDS_AFTER", step) and not first:
                os.kill(os.getpid(), signal.SIGKILL)
            while _is_asked("HANGS_AFTER", step) and not first:
                time.sleep(1)
                _require_nodes(config, address)


def _require_nodes(config: Any, address: Any) -> None:
    """Check that all nodes are there, without which an actor of verl's dies."""
    assert (len(ray.nodes()) if address else 1) == config.trainer.nnodes


def _is_asked(name: str, step: int) -> bool:
    return os.environ.get(f"STAND_IN_{name}") == str(step)


def _batches(config: Any, rows: list[Any]) -> Iterator[list[int]]:
    sampler, size = create_rl_sampler(config.data, rows), config.data.train_batch_size
    loader = StatefulDataLoader(range(len(rows)), size, sampler=sampler, drop_last=True, collate_fn=list)
    while True:
        yield from loader


async def _rewards(config: Any, tokenizer: Any, rows: list[Any], step: int) -> list[float]:
    """Return the rewards of attempts at the rows, by the agent loop of the configuration."""
    turns = json.loads(os.environ.get("STAND_IN_TURNS", '["#### {truth}"]'))
    scripts = [[turn.replace("{truth}", row["reward_model"]["ground_truth"]) for turn in turns] for row in rows]
    found = await attempt(config, ScriptedPolicy(tokenizer, scripts), rows, step)
    return [float(sequences[-1].reward_score) for sequences in found]


def _actor(folder: Path, step: int) -> Path:
    return folder / f"global_step_{step}" / "actor"


def _save(actor: Path, weights: dict[str, torch.Tensor], model: Path) -> None:
    (actor / "huggingface").mkdir(parents=True, exist_ok=True)
    shutil.copy(model / "config.json", actor / "huggingface")
    save_file(weights, actor / "huggingface/model.safetensors", {"format": "pt"})
    for rank in range(RANKS):
        shards = {name: value.chunk(RANKS)[rank] for name, value in weights.items() if len(value) >= RANKS}
        torch.save(shards, actor / f"model_world_size_{RANKS}_rank_{rank}.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": RANKS}))


if __name__ == "__main__":
    asyncio.run(main())
