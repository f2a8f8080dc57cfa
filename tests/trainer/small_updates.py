"""Updates of a tiny random model on eight made-up completions of two prompts."""

from dataclasses import replace
from typing import Any

import torch
from tests.trainer.updates import batch_of
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.algorithms.config import Algorithm
from dagrpo.trainer.batches.micro_batches import Budget
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.trainer.update.stats import UpdateStats
from dagrpo.utils.distributed import World, single_process

COMPLETIONS = [[3, 4, 5], [6], [7, 8], [9, 3, 3, 1], [4], [5, 6], [7, 7, 7], [8, 1]]
PROMPTS = [([1, 2], [2, 3, 4])[n // 4] for n in range(8)]
ADVANTAGES = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 0.0, -1.0, -1.0])
BATCH = batch_of(PROMPTS, COMPLETIONS, ADVANTAGES)
CPU = torch.device("cpu")
# The first two sequences are samples of one trajectory, and so are the last three.
SHARED_ADVANTAGES = ADVANTAGES[[0, 0, 2, 3, 4, 5, 5, 5]]
SHARED = replace(batch_of(PROMPTS, COMPLETIONS, SHARED_ADVANTAGES), trajectories=torch.tensor([0, 0, 2, 3, 4, 5, 5, 5]))
OTHERS = [0, 2, 3, 4, 7]  # the places of those that count
FILTERED = replace(BATCH, counted=torch.tensor([place in OTHERS for place in range(8)]))
IN_THE_REWARD = {"advantage": {"name": "rloo"}, "kl": {"coefficient": 0.1, "estimator": "k1", "place": "reward"}}


class Watched(PolicyUpdate):
    """Keeps the gradient of the last update."""

    gradient: dict[str, torch.Tensor]

    def _apply(self, *inputs: Any) -> float | None:
        named = self._policy.named_parameters()
        self.gradient = {name: weight.grad.clone() for name, weight in named if weight.grad is not None}
        return super()._apply(*inputs)


def small_policy() -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    return Policy(Qwen2ForCausalLM(config).eval())


def moved_policy() -> Policy:
    """A policy that is not the reference."""
    policy = small_policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.3)
    return policy


def small_update(
    policy: Policy,
    micro_batch_size: int | Budget,
    algorithm: dict[str, Any],
    training: dict[str, Any],
    world: World | None = None,
    reference: Policy | None = None,
) -> "Watched":
    values = {"steps": 1, "prompts_per_step": 2, "samples_per_prompt": 4, "learning_rate": 1e-2, **training}
    settings = Algorithm.model_validate(
        {"correction": {"name": "none"}, **algorithm}
    )  # the engine's logprobs are made up
    return Watched(
        policy=policy,
        reference=(reference or small_policy()).requires_grad_(False) if settings.kl.coefficient else None,
        optimizer=adamw(policy.parameters(), 0.0),
        algorithm=settings,
        training=Training.model_validate(values),
        budget=micro_batch_size if isinstance(micro_batch_size, Budget) else Budget(sequences=micro_batch_size),
        temperature=1.0,
        max_new_tokens=4,
        pad_token_id=0,
        world=world or single_process(),
    )


def update_once(
    kl_coefficient: float = 0.0, micro_batch_size: int = 256, loss: str = "ppo_clip", **training: Any
) -> tuple[Policy, UpdateStats]:
    policy = small_policy()
    algorithm = {"kl": {"coefficient": kl_coefficient}, "loss": {"name": loss}}
    return policy, small_update(policy, micro_batch_size, algorithm, training).run(0, BATCH)
