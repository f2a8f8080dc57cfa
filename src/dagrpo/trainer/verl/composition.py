"""Program that composes and validates a configuration by verl's own code.

`python composition.py JOB`, with verl's Python, on a CPU: composes the overrides over verl's configuration, asks verl whether it is
valid, looks up names that verl itself looks up only when it needs them, reads the rows as verl does, and has its agent loop make one
attempt. Writes the configuration as YAML, and to the file `reply` what it has found: `{"error": ...}` if verl refuses.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
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


def attempted(config: Any, policy: Any, rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the sequences of an attempt at each row, by verl's worker of agent loops and the loop of the configuration."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    class Worker(AgentLoopWorker):  # type: ignore[misc]
        async def _agent_loop_postprocess(self, output: Any, validate: bool, **_: Any) -> Any:
            return output

    rollout = config.actor_rollout_ref.rollout
    sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k, "logprobs": True}
    place = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    named = {"agent_name": rollout.agent.default_agent_loop, "trace": False, "session_id": 0, "global_steps": 1}

    async def run() -> list[list[Any]]:
        worker = Worker(config, policy)
        attempts = (
            worker._run_agent_loop(sampling, place, **named, uid=number, **row) for number, row in enumerate(rows)
        )
        return list(await asyncio.gather(*attempts))

    return asyncio.run(run())


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
    policy = ScriptedPolicy(tokenizer, [[rows[0]["reward_model"]["ground_truth"]]])
    try:
        sequence = attempted(config, policy, [rows[0]])[0][-1]
    except Exception as error:
        raise Refused(f"its agent loop cannot make an attempt: {error}") from error
    graded = {"reward": sequence.reward_score, **sequence.extra_fields["reward_extra_info"]}
    return {"verl": verl.__version__, "rows": len(rows), "order": order, "graded": graded}


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
