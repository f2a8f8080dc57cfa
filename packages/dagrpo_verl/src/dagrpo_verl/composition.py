"""Program that composes and validates a configuration by verl's own code.

`python composition.py JOB`, with verl's Python, on a CPU: composes the overrides over verl's configuration, asks verl whether it is
valid, looks up names that verl itself looks up only when it needs them, reads the rows as verl does, and has its agent loop make a few
attempts. Writes the configuration as YAML, and to the file `reply` what it has found: `{"error": ...}` if verl refuses.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

VERSION = "0.9.1"
TRIED = 4  # rows at which an attempt is made


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


def require_valid(config: Any) -> None:
    """Raise Refused if verl's validation does, or if verl has no such loss or advantage, which it would notice in the first step."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
        get_adv_estimator_fn(config.algorithm.adv_estimator)
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        omega_conf_to_dataclass(config.algorithm)
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def write_draws(config: Any, rows: Any, path: Path) -> str | None:
    """Write which rows each step draws, and return the digest of all; None where it depends on what happens in the run."""
    own = config.trainer.v1
    is_known = config.trainer.use_v1 and own.trainer_mode == "sync" and not own.sampler.sync_refill_failed_groups
    if not is_known or config.algorithm.filter_groups.enable:
        return None
    indices = [int(rows[place]["index"]) for place in range(len(rows))]
    batches, lines = draw(config, rows), []
    for _ in range(config.trainer.total_training_steps):
        places: list[int] = []
        while len(places) < config.data.train_batch_size:
            places += next(batches)
        lines.append(json.dumps([indices[place] for place in places]) + "\n")
    text = "".join(lines).encode()
    path.write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def draw(config: Any, rows: Any) -> Iterator[list[int]]:
    """Yield the places of rows in batches, without end, by verl's sampler and data loader. With workers the order is another."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.utils import create_rl_sampler

    size = config.data.get("gen_batch_size") or config.data.train_batch_size
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


class ScriptedPolicy:
    """Policy in place of verl's servers, which writes given texts turn by turn, and the last one again after that."""

    def __init__(self, tokenizer: Any, scripts: Sequence[Sequence[str]]) -> None:
        self._scripts = [[tokenizer.encode(text, add_special_tokens=False) for text in texts] for texts in scripts]
        self._stop = tokenizer.eos_token_id
        self.asked: list[list[dict[str, Any]]] = [[] for _ in scripts]

    async def generate(self, request_id: str, *, sampling_params: dict[str, Any], **request: Any) -> Any:
        """Return the next turn as verl's servers do; the request begins with the number of the script."""
        from verl.workers.rollout.replica import TokenOutput

        number = int(request_id.partition("_")[0])
        asked, turns = self.asked[number], self._scripts[number]
        turn = turns[min(len(asked), len(turns) - 1)]
        asked.append({"sampling_params": sampling_params, **request})
        most = sampling_params["max_new_tokens"]
        tokens = [*turn, self._stop][:most]
        steps = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        reason = "stop" if len(turn) < most else "length"
        return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens), stop_reason=reason, extra_fields=steps)


def require_pictures(worker: Any, sequence: Any, model: str) -> None:
    """Raise Refused unless verl's processor makes as many tokens of a sequence's pictures as it has placeholders."""
    from torch import ones_like, tensor
    from transformers import AutoConfig

    if not sequence.multi_modal_data:
        return
    ids = tensor([*sequence.prompt_ids, *sequence.response_ids])
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    inputs = worker._compute_multi_modal_inputs(sequence, ids)
    if "image_grid_thw" not in inputs:
        raise Refused(
            f"it has no processor of pictures for {model}: torchvision and qwen-vl-utils have to be installed there"
        )
    made = int(inputs["image_grid_thw"].prod(dim=1).sum()) // config.vision_config.spatial_merge_size**2
    placeholders = int((ids == config.image_token_id).sum())
    if made != placeholders:
        raise Refused(f"its processor makes {made} tokens of the pictures of a prompt that has {placeholders} for them")
    worker._compute_position_ids(ids[None], ones_like(ids)[None], inputs)


async def attempt(config: Any, policy: Any, rows: Sequence[dict[str, Any]], step: int = 0) -> list[list[Any]]:
    """Return the sequences of an attempt at each row, by verl's worker of agent loops and the loop of the configuration.

    `step`: 0 for a check, which is no draw of the run.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    class Worker(AgentLoopWorker):  # type: ignore[misc]
        async def _agent_loop_postprocess(self, output: Any, validate: bool, **_: Any) -> Any:
            for each in output if isinstance(output, list) else [output]:
                require_pictures(self, each, config.actor_rollout_ref.model.path)
            return output

    rollout = config.actor_rollout_ref.rollout
    sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k, "logprobs": True}
    place = {"step": step, "sample_index": 0, "rollout_n": 0, "validate": False}
    named = {"agent_name": rollout.agent.default_agent_loop, "trace": False, "session_id": 0, "global_steps": step}
    worker = Worker(config, policy)
    attempts = (worker._run_agent_loop(sampling, place, **{**row, **named, "uid": at}) for at, row in enumerate(rows))
    return list(await asyncio.gather(*attempts))


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Return the findings of all checks, after writing the configuration. Raises Refused."""
    try:
        import verl
    except ImportError as error:
        raise Refused(f"{sys.executable} cannot import verl ({error})") from error
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import create_rl_dataset

    if verl.__version__ != VERSION:
        raise Refused(f"verl is {verl.__version__}, and these keys are of {VERSION}")
    config = composed(job["overrides"])
    require_valid(config)
    OmegaConf.resolve(config)
    Path(job["configuration"]).write_text(OmegaConf.to_yaml(config))
    data, tokenizer = (
        config.data,
        AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path, trust_remote_code=False),
    )
    most = data.get("train_max_samples", -1)
    rows = create_rl_dataset(data.train_files, data, tokenizer, None, is_train=True, max_samples=most)
    first = [rows[place] for place in range(min(TRIED, len(rows)))]
    policy = ScriptedPolicy(tokenizer, [[row["reward_model"]["ground_truth"]] for row in first])
    try:
        [*_, sequence], *_ = asyncio.run(attempt(config, policy, first))
    except Exception as error:
        raise Refused(f"its agent loop cannot make an attempt: {error}") from error
    return {
        "verl": verl.__version__,
        "rows": len(rows),
        "draws": write_draws(config, rows, Path(job["planned"])),
        "graded": {"reward": sequence.reward_score, **sequence.extra_fields["reward_extra_info"]},
    }


def main(path: Path) -> None:
    """Write the reply to a job."""
    job = json.loads(path.read_text())
    try:
        reply = check(job)
    except Refused as refused:
        reply = {"error": str(refused)}
    Path(job["reply"]).write_text(json.dumps(reply))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
