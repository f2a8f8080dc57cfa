"""What TRL's and verl's own functions make of rewards and of logprobs: the tests of this folder run this in the environment that has them.

Reads from stdin {"batches": {name: {values}}, "cases": [{"library", "function", "options", "batch"}]}, and writes to stdout
one record per case: {"values": [sequences][tokens]}, 0 where the policy wrote nothing, or {"unavailable": why} where a library
cannot be imported. Nothing of dagrpo is imported.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Batch = Mapping[str, Tensor]
Options = Mapping[str, Any]


def verl_advantages(batch: Batch, estimator: str, options: Options) -> Tensor:
    """The advantages of that name in verl's registry."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    policy = {"old_log_probs": batch["old_logprobs"], "sum_pi_squared": batch["collision"]}
    arguments: dict[str, dict[str, Any]] = {
        "remax": {"reward_baselines": batch["greedy_rewards"][batch["group"].long()]},
        "optimal_token_baseline": policy,
        "tir_optimal_token_baseline": policy,
        "gdpo": _components(batch),
    }
    names = [str(place) for place in range(len(batch["components"]))]
    advantages: Tensor
    advantages, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=_token_rewards(batch),
        response_mask=batch["mask"],
        index=batch["group"].long().numpy(),
        config=AlgoConfig(
            gamma=options.get("gamma", 1.0),
            norm_adv_by_std_in_grpo=options.get("norm_adv_by_std_in_grpo", True),
            gdpo_reward_keys=names,
            gdpo_reward_weights=batch["weights"].tolist(),
        ),
        **arguments.get(estimator, {}),
        **{name: value for name, value in options.items() if name in ("norm_adv_by_std_in_grpo", "handle_zero_tail")},
    )
    return advantages


def _token_rewards(batch: Batch) -> Tensor:
    """The reward on the last token of each response, less each token's penalty, as verl's trainer has them."""
    rewards = -batch["penalty"] * batch["mask"]
    last = batch["written"].sum(-1).long() - 1
    rewards[torch.arange(len(last)), last] += batch["rewards"]
    return rewards


def _components(batch: Batch) -> dict[str, Any]:
    prompts = torch.zeros(len(batch["mask"]), 1)
    values = {str(place): rewards.numpy() for place, rewards in enumerate(batch["components"])}
    attention = torch.cat([prompts + 1, batch["written"]], dim=1).long()
    return {"non_tensor_batch": values, "batch": {"prompts": prompts, "attention_mask": attention}}


def trl_advantages(batch: Batch, trainer: str, options: Options) -> Tensor:
    """The advantages of GRPOTrainer or RLOOTrainer. They know no groups of unequal sizes."""
    advantages: Tensor = _scored(batch, trainer, options)["advantages"]
    return advantages[:, None] * batch["mask"]


def trl_correction(batch: Batch, mode: str, options: Options) -> Tensor:
    """GRPOTrainer's weights of tokens that vLLM sampled."""
    keys = {"use_vllm": True, "vllm_importance_sampling_mode": mode, **options}
    weights: Tensor = _scored(batch, "GRPOTrainer", keys)["importance_sampling_ratio"]
    return weights * batch["mask"]


def _scored(batch: Batch, trainer: str, options: Options) -> dict[str, Tensor]:
    """What the trainer makes of completions, of one that has nothing but what that reads, and completions of these tokens."""
    import trl

    sequences = len(batch["mask"])
    reference = batch["old_logprobs"] - batch["penalty"] * batch["mask"]  # so that the k1 divergence is the penalty
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    names = [str(place) for place in range(_rewards(batch, options).shape[1])]
    fake = SimpleNamespace(**_nothing_else())
    fake.model = model
    fake._get_per_token_logps_and_entropies = lambda of, *_, **__: (
        batch["old_logprobs"] if of is model else reference,
        None,
        None,
    )
    fake._generate = lambda prompts: _completions(batch, trainer)
    fake._calculate_rewards = lambda *_: _rewards(batch, options)
    fake.num_generations = int(batch["group"].long().bincount()[0])
    fake.reward_funcs = fake.reward_func_names = names
    fake.reward_weights = batch["weights"] if len(names) > 1 else torch.ones(1, dtype=torch.float64)
    vars(fake).update(options)
    result: dict[str, Tensor] = getattr(trl, trainer)._generate_and_score_completions(
        fake, [{"prompt": ""}] * sequences
    )
    return result


def _completions(batch: Batch, trainer: str) -> tuple[Any, ...]:
    """Prompts, completions and texts; for GRPOTrainer with what the policy wrote of them, and its engine's logprobs."""
    lengths = batch["written"].sum(-1).long().tolist()

    def cut(rows: Tensor) -> list[list[Any]]:
        return [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]

    prompts, ids, texts = [[1]] * len(lengths), cut(batch["written"].long()), [""] * len(lengths)
    if trainer == "RLOOTrainer":
        return prompts, ids, texts
    return prompts, ids, cut(batch["mask"].long()), texts, cut(batch["rollout_logprobs"]), {}, None, None


def _rewards(batch: Batch, options: Options) -> Tensor:
    """[sequences, functions]"""
    several = options.get("multi_objective_aggregation") == "normalize_then_sum"
    return batch["components"].T if several else batch["rewards"][:, None]


def _nothing_else() -> dict[str, Any]:
    """Whatever the trainers ask for beside."""
    return {
        "accelerator": SimpleNamespace(
            device="cpu", process_index=0, gather=lambda values: values, reduce=lambda values, **_: values
        ),
        "ref_model": SimpleNamespace(),
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "args": SimpleNamespace(
            per_device_train_batch_size=1,
            gradient_checkpointing_kwargs=None,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        ),
        "environment_factories": None,
        "environments": None,
        "tools": [],
        "pad_to_multiple_of": None,
        "mask_truncated_completions": False,
        "num_iterations": 1,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_clip_min": None,
        "vllm_importance_sampling_clip_max": None,
        "beta": 0.0,
        "reward_clip_range": None,
        "normalize_advantages": False,
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "log_multimodal": False,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_logs": {"prompt": [], "completion": [], "advantages": [], "rewards": defaultdict(list)},
        "_pending_extra_logs": {},
        "_pending_metrics": {},
    }


def trl_off_policy_mask(batch: Batch, _: str, options: Options) -> Tensor:
    """1 on the tokens that GRPOTrainer keeps."""
    from trl import GRPOTrainer

    kept: Tensor = GRPOTrainer.get_off_policy_mask(
        batch["advantages"][:, None], batch["logprobs"], batch["rollout_logprobs"], batch["mask"], options["threshold"]
    )
    return kept * batch["mask"]


def verl_correction(batch: Batch, level: str, options: Options) -> Tensor:
    """verl's weights of tokens, 0 where `rollout_rs` of the options rejects them."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

    log_ratio = batch["old_logprobs"] - batch["rollout_logprobs"]
    weights: Tensor
    weights, _ = compute_rollout_correction_weights(log_ratio, batch["mask"], level, options["threshold"])
    if "rollout_rs" not in options:
        return weights
    kept: Tensor
    kept, _ = compute_rollout_rejection_mask(
        log_ratio, batch["mask"], options["rollout_rs"], options["rollout_rs_threshold"]
    )
    return weights * kept


def verl_aggregation(batch: Batch, mode: str, options: Options) -> Tensor:
    """What each token weighs in the mean over losses; those of the sequences in `uncounted` are masked."""
    from verl.trainer.ppo.core_algos import agg_loss

    mask = batch["mask"].clone()
    mask[options["uncounted"]] = 0
    losses = torch.ones_like(mask, requires_grad=True)
    loss = agg_loss(losses, mask, mode, loss_scale_factor=options.get("loss_scale_factor"))
    (weights,) = torch.autograd.grad(loss, losses)
    return weights


LIBRARIES: dict[str, Callable[[Batch, str, Options], Tensor]] = {
    "trl": trl_advantages,
    "trl_correction": trl_correction,
    "trl_off_policy_mask": trl_off_policy_mask,
    "verl": verl_advantages,
    "verl_correction": verl_correction,
    "verl_aggregation": verl_aggregation,
}


def computed(values: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """The record of one case."""
    batch = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in values.items()}
    try:
        result = LIBRARIES[case["library"]](batch, case["function"], case["options"])
    except ImportError as error:
        return {"unavailable": f"{type(error).__name__}: {error}"}
    return {"values": result.tolist()}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = [computed(asked["batches"][case["batch"]], case) for case in asked["cases"]]
    print("\n" + json.dumps(answers))  # the last line: libraries print when they are imported
