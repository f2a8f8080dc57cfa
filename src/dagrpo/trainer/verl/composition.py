"""Program that composes and validates a configuration by verl's own code.

`python composition.py JOB`, with verl's Python, on a CPU: composes the overrides over verl's configuration, asks verl whether it is
valid, looks up names that verl itself looks up only when it needs them, reads the rows as verl does, and has its reward manager
grade one response. Writes the configuration as YAML, and to the file `reply` what it has found: `{"error": ...}` if verl refuses.
"""

import asyncio
import hashlib
import json
import sys
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


def prompts(config: Any, tokenizer: Any) -> tuple[Any, str]:
    """Return the rows as verl reads them, and the digest of the order in which it draws the first epoch of them."""
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

    rows = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    order = [int(rows[place]["index"]) for place in create_rl_sampler(config.data, rows)]
    return rows, hashlib.sha256(json.dumps(order).encode()).hexdigest()


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
    rows, order = prompts(config, tokenizer)
    return {"verl": verl.__version__, "rows": len(rows), "order": order, "graded": graded(config, tokenizer, rows[0])}


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
