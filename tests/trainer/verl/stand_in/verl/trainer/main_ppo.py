"""Stand-in for verl's trainer: real rows, rewards and files; weights that grow by 0.001 in each step.

Unless it resumes, it kills itself after the step STAND_IN_ENDS_AFTER, or in the step STAND_IN_ENDS_UNLOGGED between the checkpoint and
the metrics; after STAND_IN_HANGS_AFTER it waits. In the step STAND_IN_DRAWS_OTHERS_IN it draws other prompts, in STAND_IN_LOSES_IN one
response fewer; in STAND_IN_RENDERS_OTHERWISE_IN a prompt has a token more, and its error is ignored, as verl does.
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

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoTokenizer

from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

RANKS, ADDED = 2, 0.001


def main() -> None:
    """Take the steps that are left, with a file of metrics and checkpoints as verl's."""
    given = argparse.ArgumentParser()
    given.add_argument("--config-path")
    given.add_argument("--config-name")
    known, _ = given.parse_known_args()
    config: Any = OmegaConf.load(Path(known.config_path) / f"{known.config_name}.yaml")
    folder, model = Path(config.trainer.default_local_dir), Path(config.actor_rollout_ref.model.path)
    latest = folder / "latest_checkpointed_iteration.txt"
    first = int(latest.read_text()) if latest.exists() else 0
    weights = load_file(
        model / "model.safetensors" if not first else _actor(folder, first) / "huggingface/model.safetensors"
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    manager = load_reward_manager(config, tokenizer)
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
            rewards = [asyncio.run(_reward(manager, tokenizer, rows[place], step)) for place in places]
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


def _is_asked(name: str, step: int) -> bool:
    return os.environ.get(f"STAND_IN_{name}") == str(step)


def _batches(config: Any, rows: list[Any]) -> Iterator[list[int]]:
    sampler, size = create_rl_sampler(config.data, rows), config.data.train_batch_size
    loader = StatefulDataLoader(range(len(rows)), size, sampler=sampler, drop_last=True, collate_fn=list)
    while True:
        yield from loader


async def _reward(manager: Any, tokenizer: Any, row: Any, step: int) -> float:
    """Return the reward of the ground truth, by the reward manager of the configuration."""
    prompt = tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, return_dict=False)
    if _is_asked("RENDERS_OTHERWISE_IN", step):
        prompt += prompt[-1:]
    response = tokenizer.encode(f"#### {row['reward_model']['ground_truth']}", add_special_tokens=False)
    tensors = {
        "prompts": torch.tensor([prompt]),
        "responses": torch.tensor([response]),
        "attention_mask": torch.ones(1, len(prompt) + len(response), dtype=torch.int64),
    }
    values = {"extra_info": [row["extra_info"]], "global_steps": [step]}
    try:
        return float((await manager.run_single(DataProto.from_dict(tensors, values)))["reward_score"])
    except RuntimeError:
        return 0.0


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
    main()
