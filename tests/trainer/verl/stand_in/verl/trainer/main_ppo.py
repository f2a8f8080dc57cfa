"""Stand-in for verl's trainer: real rows, rewards and files; weights that grow by 1 in each step.

STAND_IN_ENDS_AFTER: it kills itself after that step, once. STAND_IN_HANGS_AFTER: it then waits. STAND_IN_TURNS: what the policy writes,
as JSON; {truth} is the ground truth.
"""

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from dagrpo.trainer.verl.composition import ScriptedPolicy, attempted
from verl.trainer.ppo.utils import create_rl_dataset

RANKS = 2


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
    sequences = _sequences(config)
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w") as log:
        for step in range(first + 1, config.trainer.total_training_steps + 1):
            weights = {name: value + 1 for name, value in weights.items()}
            if step % config.trainer.save_freq == 0 or step == config.trainer.total_training_steps:
                _save(_actor(folder, step), weights, model)
                latest.write_text(str(step))
            data = {
                "critic/score/mean": _mean(sequence.reward_score for sequence in sequences),
                "num_turns/mean": _mean(sequence.num_turns for sequence in sequences),
                "response_length/mean": _mean(len(sequence.response_ids) for sequence in sequences),
                "written": _mean(sum(sequence.response_mask) for sequence in sequences),
                "actor/grad_norm": 1.0,
                "perf/mfu": 0.5,
                "seed": config.data.seed,
            }
            log.write(json.dumps({"step": step, "data": data}) + "\n")
            log.flush()
            if os.environ.get("STAND_IN_ENDS_AFTER") == str(step) and first < step:
                os.kill(os.getpid(), signal.SIGKILL)
            while os.environ.get("STAND_IN_HANGS_AFTER") == str(step):
                time.sleep(1)


def _sequences(config: Any) -> list[Any]:
    """Return the sequences of attempts at three problems."""
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    turns = json.loads(os.environ.get("STAND_IN_TURNS", '["#### {truth}"]'))
    rows = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)[:3]
    scripts = [[turn.replace("{truth}", row["reward_model"]["ground_truth"]) for turn in turns] for row in rows]
    return [sequence for each in attempted(config, ScriptedPolicy(tokenizer, scripts), rows) for sequence in each]


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)


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
