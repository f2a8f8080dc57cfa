"""The memory of one micro-batch: the trainer's own update, run without values."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint
from transformers import AutoConfig

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.checkpoints.modelling import PreTrainedConfig, PreTrainedModel
from dagrpo.checkpoints.modules import model_class_of
from dagrpo.checkpoints.tensors import NAMED_DTYPES
from dagrpo.core.errors import UserError
from dagrpo.pipeline.plan.live_bytes import LiveBytes
from dagrpo.pipeline.plan.sequences import MicroBatch
from dagrpo.pipeline.plan.shape import Shape
from dagrpo.pipeline.plan.stand_in import META, StandIn
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.budget import CACHED, Budget
from dagrpo.trainer.batches.mini_batches import MiniBatch
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.model.attention import attend_in_float32
from dagrpo.trainer.model.lora import WithoutAdapter, add_adapter
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.update.policy_update import PolicyUpdate
from dagrpo.utils.distributed import World

PLAIN, NO_ADAPTER = Algorithm(), Lora()
DEPTHS = (1, 2)  # layers of the models that are run: every layer adds the same
# Logits that the head of a run reads on a CPU, which takes a few at a time: more last longer and need no more memory.
MOST_READ = 16 * CACHED
MOST_TOKENS = 16_384  # trained ones of a run for a GPU, where the head takes them in chunks
FIRST_TOKEN = 3  # of a made-up prompt


class NeedsValues(UserError):
    """An update that cannot run without values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Settings of a micro-batch that decide its memory."""

    batch: MicroBatch
    dtype: str
    layout: Layout
    on_gpu: bool
    algorithm: Algorithm = PLAIN  # its loss, and whether it asks a reference
    lora: Lora = NO_ADAPTER
    checkpointed: bool = False  # whether activations are computed again
    head_chunk: int | None = None  # tokens whose logits are in memory at a time; None: all
    float32_head: bool = False
    share_prompts: bool = False
    sharded: bool = False  # whether FSDP gathers the weights in `dtype`, layer by layer
    accumulates: bool = True  # whether gradients of an earlier micro-batch are there already
    looks_ahead: bool = False  # whether the policy runs once more before its update


def peak_bytes(shape: Shape, passes: Passes) -> int:
    """Return the peak of a micro-batch beside weights, and gradients of earlier micro-batches, in bytes.

    The peak is either within the layers or after them, at the embeddings; each grows by the same with every layer.
    Raises UserError if an adapter names no layer, and NeedsValues if the computation depends on values, as in a kernel of the user's.
    """
    config = shape.model.config
    key = config.to_json_string(use_diff=False), repr(passes)
    if key not in _cache:
        try:
            low, high = (_peaks(_at_depth(shape, depth), passes) for depth in DEPTHS)
        except UserError:
            raise
        except Exception as error:  # the border to a loss and a config of others: without values, any error
            reason = str(error).partition(chr(10))[0] or type(error).__name__
            raise NeedsValues(
                f"An update of this {config.model_type} model cannot run without values ({reason}): its activations are left out of the "
                "plan, which training does not need; choose another loss to plan them."
            ) from error
        more = shape.text.num_hidden_layers - DEPTHS[0]
        _cache[key] = max(less + more * (greater - less) for less, greater in zip(low, high, strict=True))
    return _cache[key]


_cache: dict[tuple[str, str], int] = {}


def _at_depth(shape: Shape, depth: int) -> PreTrainedConfig:
    """Return the config of a text model with `depth` layers.

    A mixture of experts routes tokens by their values, which are missing here: it runs as a dense model as wide as all experts of a
    token. So does the language model of a model with pictures.
    """
    text = deepcopy(shape.text)
    if is_mixture_of_experts(text) or shape.vision is not None:
        text = AutoConfig.for_model(
            "qwen3" if "qwen3" in text.model_type else "llama",
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            intermediate_size=shape.mlp_width,
            num_attention_heads=text.num_attention_heads,
            num_key_value_heads=shape.key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            max_position_embeddings=text.max_position_embeddings,
            tie_word_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        )
    text.num_hidden_layers = depth
    if getattr(text, "layer_types", None):
        text.layer_types = [*islice(cycle(text.layer_types), depth)]
    return text


def _peaks(config: PreTrainedConfig, passes: Passes) -> tuple[int, int]:
    """Return the peak until the backward pass has left the layers, and the one after that."""
    live, device = LiveBytes(), torch.device("cuda", 0) if passes.on_gpu else torch.device("cpu")
    batch, left_out = _rollouts(config.vocab_size, passes)
    with torch.device("meta"), _checks_of_recomputation_off():
        policy = _policy(config, passes)
        reference: Any = None
        if passes.algorithm.kl.coefficient > 0:
            reference = WithoutAdapter(policy) if passes.lora.is_on else _frozen(config, passes)
    with StandIn(device), live, _checks_of_recomputation_off():
        update = _update(policy, reference, passes, META, live)
        _call_when_layers_end(policy, live)
        if passes.accumulates:
            for weight in policy.parameters():
                weight.grad = torch.empty_like(weight) if weight.requires_grad else None
        live.start()
        before = live.bytes
        update.run(0, batch, update.computed_before(batch) if passes.looks_ahead else None)
    in_layers, after = update.peaks
    return in_layers - before + _omitted_logits(config, passes, left_out), after - before


class _WithoutOptimizer(PolicyUpdate):
    """Update that ends with the gradients, where it records both peaks."""

    live: LiveBytes
    peaks: tuple[int, int]

    def _apply(self, mini_batch: MiniBatch, losses: Tensor, learning_rate: float) -> float:
        self.peaks = self.live.peak_before, self.live.peak
        return 0.0


def _omitted_logits(config: PreTrainedConfig, passes: Passes, left_out: int) -> int:
    """Return the bytes of the logits of omitted tokens, as many as the head has in memory at a time."""
    run = passes.batch.trained - left_out
    rows = left_out if passes.head_chunk is None else min(left_out, max(passes.head_chunk - run, 0))
    return rows * int(config.vocab_size) * (4 if passes.float32_head else NAMED_DTYPES[passes.dtype].itemsize)


def _call_when_layers_end(policy: Policy, live: LiveBytes) -> None:
    """Split the count where a backward pass reaches the input of the first layer."""

    def of_embeddings(_: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: live.split())  # type: ignore[no-untyped-call]

    policy.model.get_input_embeddings().register_forward_hook(of_embeddings)


@contextmanager
def _checks_of_recomputation_off() -> Iterator[None]:
    """Recompute layers without torch's comparison of devices: it sees some tensors through `StandIn`, others not."""
    checks = checkpoint._allowed_determinism_checks_to_fns
    before = checks["default"]
    checks["default"] = checks["none"]
    try:
        yield
    finally:
        checks["default"] = before


def _policy(config: PreTrainedConfig, passes: Passes) -> Policy:
    dtype = NAMED_DTYPES[passes.dtype]
    model = _model(config, dtype if passes.sharded else torch.float32)
    policy = Policy(model, dtype=dtype, float32_head=passes.float32_head)
    if not passes.on_gpu and dtype.itemsize < torch.float32.itemsize:
        attend_in_float32(model)
    if passes.lora.is_on:
        add_adapter(model, passes.lora)
    if passes.checkpointed:
        policy.checkpoint_activations()
    return policy


def _frozen(config: PreTrainedConfig, passes: Passes) -> Policy:
    return Policy(_model(config, torch.float32), dtype=NAMED_DTYPES[passes.dtype]).requires_grad_(False)


def _model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = model_class_of(config)._from_config(config, dtype=dtype)
    model.tie_weights()
    return model.eval()


def _update(policy: Policy, reference: Any, passes: Passes, device: torch.device, live: LiveBytes) -> _WithoutOptimizer:
    batch = passes.batch
    training = {"prompts_per_step": batch.sequences, "samples_per_prompt": 1, "learning_rate": 1e-6}
    update = _WithoutOptimizer(
        policy=policy,
        reference=reference,
        optimizer=adamw(policy.parameters(), 0.0),
        algorithm=passes.algorithm,
        training=Training.model_validate(training | {"digests_every": 0, "gates": {"truncated": None}}),
        budget=Budget(
            sequences=batch.sequences,
            head_chunk_tokens=passes.head_chunk,
            layout=passes.layout,
            share_prompts=passes.share_prompts,
        ),
        temperature=1.0,
        max_new_tokens=batch.written,
        pad_token_id=0,
        world=World(rank=0, size=1, device=device),
    )
    update.live = live
    return update


def _rollouts(vocabulary: int, passes: Passes) -> tuple[Batch, int]:
    """Return sequences of the greatest length, and the number of their trained tokens that are omitted."""
    batch = passes.batch
    prompt = batch.longest - batch.written
    most = MOST_TOKENS if passes.on_gpu else MOST_READ // vocabulary
    run = min(batch.written, max(most // batch.sequences, 1))
    ids = [
        [FIRST_TOKEN + number // batch.samples % (vocabulary - FIRST_TOKEN)] * batch.longest
        for number in range(batch.sequences)
    ]
    mask = [[prompt <= place < prompt + run for place in range(batch.longest)]] * batch.sequences
    trained = run * batch.sequences
    rollouts = Batch(
        sequences=TokenSequences.of(ids, mask),
        trajectories=torch.arange(batch.sequences),
        rollout_logprobs=torch.zeros(trained),
        positive=torch.ones(batch.sequences, dtype=torch.bool),
        teacher_logprobs=torch.zeros(trained) if passes.algorithm.teacher.source != "none" else None,
        advantages=torch.zeros(trained),
    )
    return rollouts, (batch.written - run) * batch.sequences
