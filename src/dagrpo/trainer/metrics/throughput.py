"""Throughput of a step: tokens per second and MFU.

MFU is the share of the devices' peak that the model's arithmetic made up. Only the model's own FLOPs count, as in PaLM
(arXiv 2204.02311, appendix B): nothing that is computed for padding, for a reference or a second time. A device without a known
peak, such as a CPU, has no MFU. No part of any result.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dagrpo.checkpoints.experts import number_of_experts
from dagrpo.checkpoints.modelling import PreTrainedModel
from dagrpo.engine.config import EngineConfig
from dagrpo.trainer.batches.rollouts import CUT_OFF_TOKENS, Rollouts
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.distributed import World
from dagrpo.utils.gpu_specs import kind_of


def peak_of(device: str) -> float | None:
    """Return the peak of a device in bfloat16 FLOPs per second, by the device's name; None if unknown."""
    kind = kind_of(device)
    return None if kind is None else kind.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Arithmetic of a model per token, in multiplications with a weight or with another token."""

    parameters: float  # N: parameters that each token is multiplied with. Of experts, only those that it is routed to
    attention: int  # L d: layers, times their heads, times the size of a head
    frozen: float = 0.0  # part of N without a gradient, as beside an adapter

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Arithmetic":
        """Count a model's arithmetic. A windowed layer counts as one that attends to all earlier tokens; a vision tower is not counted."""
        config = model.config.get_text_config()
        experts = number_of_experts(config)
        used = config.num_experts_per_tok / experts if experts else 1.0
        tower = tower_module(model)
        apart = set() if tower is None else set(tower.parameters())
        # The text config of a published Qwen2.5-VL does not say whether embeddings are tied: the whole config does.
        is_tied = getattr(config, "tie_word_embeddings", model.config.tie_word_embeddings)
        if not is_tied:  # a token is looked up in its embeddings, not multiplied with them
            apart.add(model.get_input_embeddings().weight)
        counted = {
            weight: weight.numel() * (used if ".experts." in name else 1.0)
            for name, weight in model.named_parameters()
            if weight not in apart
        }
        frozen = sum(number for weight, number in counted.items() if not weight.requires_grad)
        heads = getattr(config, "num_attention_heads", None) or 0
        size = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
        attention = config.num_hidden_layers * heads * size
        return cls(parameters=sum(counted.values()), attention=attention, frozen=frozen)

    def sampling(self, tokens: int) -> float:
        """Return the FLOPs of sampling `tokens` tokens: 2 N each."""
        return 2 * self.parameters * tokens

    def update(self, lengths: list[int]) -> float:
        """Return the FLOPs of a forward and a backward pass over sequences: 6 N + 6 L d s for each token of one of s tokens.

        A frozen weight takes 4 instead of 6: no gradient is computed for it, only through it.
        """
        weights = 6 * self.parameters - 2 * self.frozen
        return sum((weights + 6 * self.attention * length) * length for length in lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Constants of a run from which its throughput is computed."""

    arithmetic: Arithmetic
    update_peak: float | None  # of all devices that update together; None: unknown
    rollout_peak: float | None  # of the engine; None: unknown, as for servers that run elsewhere

    @classmethod
    def of(cls, model: PreTrainedModel, world: World, engine: EngineConfig) -> "Throughput":
        """Return the throughput of a model that all ranks train on devices of one kind, which the stage's servers use, too."""
        peak = peak_of(torch.cuda.get_device_name(world.device)) if world.device.type == "cuda" else None
        return cls(
            arithmetic=Arithmetic.of(model),
            update_peak=None if peak is None else peak * world.size,
            rollout_peak=None if engine.servers or peak is None else peak * engine.gpus * max(1, engine.nodes),
        )

    def figures(self, rollouts: Rollouts, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the throughput of a step, by the seconds of its parts so far; held-out evaluations do not count as training."""
        cut_off = rollouts.sampling_metrics.get(CUT_OFF_TOKENS, 0.0)
        written = sum(each.tokens for each in rollouts.attempts) + round(cut_off)
        of_training = sum(seconds.values()) - seconds.get("timing/held_out_seconds", 0.0)
        figures = {"timing/tokens_per_second": written / of_training}
        if self.rollout_peak is not None:
            spent = (rollouts.ahead_seconds or seconds["timing/rollout_seconds"]) * self.rollout_peak
            figures["timing/rollout_mfu"] = self.arithmetic.sampling(written) / spent
        if self.update_peak is not None:
            lengths = [len(sample.token_ids) for _, sample in rollouts.samples]
            spent = seconds["timing/update_seconds"] * self.update_peak
            figures["timing/update_mfu"] = self.arithmetic.update(lengths) / spent
        return figures
