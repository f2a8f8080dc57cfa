"""Program that composes and validates a configuration by verl's own code.

`python composition.py JOB`, with verl's Python, on a CPU: composes the overrides over verl's configuration, asks verl whether it is
valid, looks up names that verl itself looks up only when it needs them, reads the rows as verl does, and has its reward manager
grade one response. Writes the configuration as YAML, and to the file `reply` what it has found: `{"error": ...}` if verl refuses.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = "0.9.1"


class Refused(Exception):
    """Refusal of a configuration, with the reason."""


def composed(overrides: list[str]) -> Any:
    """Return verl's configuration with the overrides. Raises Refused for a key that verl does not have."""
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    with initialize_config_module("verl.trainer.config", version_base=None):
        try:
            return compose("ppo_trainer", overrides)
        except HydraException as error:
            raise Refused(f"{error} {error.__cause__ or ''}".strip()) from error


def require_names(config: Any) -> None:
    """Raise Refused for a loss or an advantage that verl does not have, which it would notice in the first step."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    for look_up, name in (
        (get_policy_loss_fn, config.actor_rollout_ref.actor.policy_loss.loss_mode),
        (get_adv_estimator_fn, config.algorithm.adv_estimator),
    ):
        try:
            look_up(name)
        except (KeyError, ValueError) as error:
            raise Refused(f"verl does not know {name}: {error}") from error


def require_valid(config: Any) -> None:
    """Raise Refused if verl's own validation does."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        omega_conf_to_dataclass(config.algorithm)
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def read_rows(config: Any, tokenizer: Any) -> Any:
    """Return the rows as verl reads them."""
    from verl.trainer.ppo.utils import create_rl_dataset

    most = config.data.get("train_max_samples", -1)
    return create_rl_dataset(config.data.train_files, config.data, tokenizer, None, is_train=True, max_samples=most)


def write_draws(config: Any, rows: Any, path: Path) -> str | None:
    """Write which rows each step draws, and return the digest of all; None where it depends on what happens in the run."""
    own = config.trainer.v1
    is_known = config.trainer.use_v1 and own.trainer_mode == "sync" and not own.sampler.sync_refill_failed_groups
    if not is_known or config.algorithm.filter_groups.enable:
        return None
    indices = [int(rows[place]["index"]) for place in range(len(rows))]
    per_step = config.data.train_batch_size
    batches = drawn(config, rows, config.data.get("gen_batch_size") or per_step)
    digest = hashlib.sha256()
    with path.open("w") as file:
        for _ in range(config.trainer.total_training_steps):
            places: list[int] = []
            while len(places) < per_step:
                places += next(batches)
            line = json.dumps([indices[place] for place in places]) + "\n"
            digest.update(line.encode())
            file.write(line)
    return digest.hexdigest()


def drawn(config: Any, rows: Any, size: int) -> Iterator[list[int]]:
    """Yield the places of rows in batches, without end, by verl's sampler and data loader. With workers the order is another."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.utils import create_rl_sampler

    loader = StatefulDataLoader(
        dataset=range(len(rows)),
        batch_size=size,
        num_workers=config.data.dataloader_num_workers,
        drop_last=True,
        collate_fn=list,
        sampler=create_rl_sampler(config.data, rows),
    )
    if not len(loader):
        raise Refused(f"an epoch has no whole step: {len(rows)} rows to train on, and {size} prompts per step")
    while True:
        yield from loader


def graded(config: Any, tokenizer: Any, row: Any) -> dict[str, Any]:
    """Return what the reward manager makes of the response that repeats the ground truth."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    rendered = tokenizer.apply_chat_template(
        row["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    prompt = torch.tensor([rendered])
    response = torch.tensor([tokenizer.encode(row["reward_model"]["ground_truth"], add_special_tokens=False)])
    data = DataProto.from_dict(
        tensors={
            "prompts": prompt,
            "responses": response,
            "attention_mask": torch.ones(1, prompt.shape[1] + response.shape[1], dtype=torch.int64),
        },
        non_tensors={
            name: np.array([row[name]], dtype=object) for name in ("extra_info", "reward_model", "data_source")
        },
    )

    async def ask() -> dict[str, Any]:
        manager = load_reward_manager(config, tokenizer)
        reply: dict[str, Any] = await manager.run_single(data)
        return reply

    return asyncio.run(ask())


def checked(job: dict[str, Any]) -> dict[str, Any]:
    """Return the findings of all checks, after writing the configuration. Raises Refused."""
    try:
        import verl
    except ImportError as error:
        raise Refused(f"{sys.executable} cannot import verl ({error})") from error
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    if verl.__version__ != VERSION:
        raise Refused(f"verl is {verl.__version__}, and these keys are of {VERSION}")
    config = composed(job["overrides"])
    require_names(config)
    require_valid(config)
    OmegaConf.resolve(config)
    Path(job["configuration"]).write_text(OmegaConf.to_yaml(config))
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    rows = read_rows(config, tokenizer)
    return {
        "verl": verl.__version__,
        "rows": len(rows),
        "draws": write_draws(config, rows, Path(job["planned"])),
        "graded": graded(config, tokenizer, rows[0]),
    }


def main(path: Path) -> None:
    """Write the reply to a job."""
    job = json.loads(path.read_text())
    try:
        reply = checked(job)
    except Refused as refused:
        reply = {"error": str(refused)}
    Path(job["reply"]).write_text(json.dumps(reply))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
