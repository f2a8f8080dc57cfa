"""What TRL's and verl's own functions make of a few numbers: test_objectives.py runs this in the environment that has them.

Reads from stdin {"batch": {name: [sequences][tokens]}, "cases": [{"library", "function", "options"}]}, where a case may have
a batch and a dtype of its own, and writes to stdout one record per case: {"loss", "gradient": [sequences][tokens]}, or
{"unavailable": why} where a library cannot be imported. Nothing of dagrpo is imported.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Batch = Mapping[str, Tensor]  # [sequences, tokens] each; mask is 0 on padding


class OneProcess:
    """What TRL asks of accelerate."""

    num_processes = 1

    def pad_across_processes(self, values: Tensor, **_: Any) -> Tensor:
        return values

    def gather(self, values: Tensor) -> Tensor:
        return values

    def reduce(self, values: Tensor, **_: Any) -> Tensor:
        return values


def trl_loss(batch: Batch, loss_type: str, options: Mapping[str, Any]) -> Tensor:
    """GRPOTrainer's loss, of a trainer that has nothing but what the loss reads, and a model that has these logprobs."""
    from trl import GRPOTrainer

    arguments = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1, **options}
    trainer = SimpleNamespace(
        args=SimpleNamespace(**arguments),
        accelerator=OneProcess(),
        model=SimpleNamespace(training=True),
        loss_type=loss_type,
        epsilon_low=options.get("epsilon_low"),
        epsilon_high=options.get("epsilon_high"),
        importance_sampling_level=options.get("importance_sampling_level", "token"),
        max_completion_length=options.get("max_completion_length"),
        top_entropy_quantile=options.get("top_entropy_quantile", 1.0),
        beta=0.0,
        use_vllm=False,
        aux_loss_enabled=False,
        off_policy_mask_threshold=None,
        current_gradient_accumulation_steps=1,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch["logprobs"], batch["entropy"], None),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    trainer.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, trainer)
    ids = torch.zeros(batch["mask"].shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": batch["mask"],
        "advantages": batch["advantages"][:, 0],
        "old_per_token_logps": batch["old_logprobs"],
        "num_items_in_batch": batch["mask"].sum(),
    }
    result: Tensor = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    return result


def verl_loss(batch: Batch, loss_mode: str, options: Mapping[str, Any]) -> Tensor:
    """The policy loss of that name in verl's registry. `anchor` of the options: whose logprobs are the old ones."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    actor = {
        name: value for name, value in options.items() if name not in ("policy_loss", "anchor", "loss_scale_factor")
    }
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**options.get("policy_loss", {})),
        **actor,
    )
    if "loss_scale_factor" in options:
        config.global_batch_info["loss_scale_factor"] = options["loss_scale_factor"]
    loss: Tensor
    loss, _ = get_policy_loss_fn(loss_mode)(
        old_log_prob=batch[options.get("anchor", "old_logprobs")],
        log_prob=batch["logprobs"],
        advantages=batch["advantages"],
        response_mask=batch["mask"],
        loss_agg_mode=options.get("loss_agg_mode", "token-mean"),
        config=config,
    )
    return loss


def verl_divergence(batch: Batch, estimator: str, options: Mapping[str, Any]) -> Tensor:
    """The sum over all tokens of verl's estimate of the divergence."""
    from verl.trainer.ppo.core_algos import kl_penalty

    result: Tensor = (kl_penalty(batch["logprobs"], batch["reference_logprobs"], estimator) * batch["mask"]).sum()
    return result


LIBRARIES: dict[str, Callable[[Batch, str, Mapping[str, Any]], Tensor]] = {
    "trl": trl_loss,
    "verl": verl_loss,
    "verl_divergence": verl_divergence,
}


def computed(values: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """The record of one case."""
    dtype = getattr(torch, case.get("dtype", "float64"))
    batch = {name: torch.tensor(rows, dtype=dtype) for name, rows in case.get("batch", values).items()}
    batch["logprobs"].requires_grad_()
    try:
        loss = LIBRARIES[case["library"]](batch, case["function"], case["options"])
    except ImportError as error:
        return {"unavailable": f"{type(error).__name__}: {error}"}
    (gradient,) = torch.autograd.grad(loss, batch["logprobs"])
    return {"loss": float(loss.detach()), "gradient": gradient.tolist()}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = [computed(asked["batch"], case) for case in asked["cases"]]
    print("\n" + json.dumps(answers))  # the last line: libraries print when they are imported
