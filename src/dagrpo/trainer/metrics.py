"""The numbers of one GRPO step that belong to its result. Timings do not: they would make the bytes differ."""

import numpy as np
import torch

from dagrpo.trainer.rollouts import Rollouts
from dagrpo.trainer.update import Updated


def step_metrics(rollouts: Rollouts, advantages: torch.Tensor, updated: Updated) -> dict[str, float]:
    """One row of metrics.parquet, without its step."""
    rewards = rollouts.rewards.numpy().astype(np.float64)
    lengths = np.array([len(completion.token_ids) for completion in rollouts.completions], dtype=np.float64)
    groups = rewards.reshape(-1, rollouts.samples_per_prompt)
    truncated = [completion.finish_reason == "length" for completion in rollouts.completions]
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "accuracy": float(np.mean([score.correct is True for score in rollouts.scores])),
        "missing_answer_fraction": float(np.mean([score.verdict == "missing" for score in rollouts.scores])),
        "unverifiable_fraction": float(np.mean([score.verdict == "unverifiable" for score in rollouts.scores])),
        **_reward_components(rollouts),
        "zero_std_fraction": float((groups.std(axis=1) == 0).mean()),
        "advantage_mean": float(advantages.double().mean()),
        "advantage_std": float(advantages.double().std()),
        "completion_length_mean": float(lengths.mean()),
        "completion_length_max": float(lengths.max()),
        "truncated_fraction": float(np.mean(truncated)),
        "loss": updated.loss,
        "kl": updated.kl,
        "entropy": updated.entropy,
        "clip_fraction": updated.clip_fraction,
        "grad_norm": updated.grad_norm,
        "learning_rate": updated.learning_rate,
        **logprob_differences(rollouts, updated.logprobs),
    }


def _reward_components(rollouts: Rollouts) -> dict[str, float]:
    """The mean of each component of the reward by itself, unweighted."""
    names = rollouts.scores[0].components
    return {f"reward_{name}_mean": float(np.mean([s.components[name] for s in rollouts.scores])) for name in names}


def logprob_differences(rollouts: Rollouts, trainer_logprobs: torch.Tensor) -> dict[str, float]:
    """How far the engine's logprobs are from the trainer's, over all completion tokens: a check on the whole set-up."""
    engine = np.concatenate([np.asarray(completion.logprobs) for completion in rollouts.completions])
    difference = np.abs(engine - trainer_logprobs.double().cpu().numpy())
    return {"logprob_difference_mean": float(difference.mean()), "logprob_difference_max": float(difference.max())}
