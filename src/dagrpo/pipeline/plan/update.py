"""One micro-batch of the trainer's own update, counted on tensors without values."""

from collections import Counter
from collections.abc import Callable, Iterator
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
from dagrpo.pipeline.plan.counting import Counting, Kernel
from dagrpo.pipeline.plan.sequences import MicroBatch
from dagrpo.pipeline.plan.stand_in import META, StandIn
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.budget import CACHED, Budget
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
DEPTHS = (1, 2)  # layers of the models that are counted
# Logits that are counted on a CPU, which reads a few at a time: more take as much memory at a time.
MOST_READ = 16 * CACHED
MOST_TOKENS = 16_384  # trained ones that are counted on a GPU, where the head takes them in chunks
# Of a logit, read and written by an update and by each further forward pass over it, as counted on a GPU.
LOGIT_BYTES, FORWARD_LOGIT_BYTES = 100, 48
FIRST_TOKEN = 3  # of a made-up prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Settings of a micro-batch that decide its work and its memory."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Kernels and memory of a micro-batch with a model of one depth."""

    # Bytes of all that is there beside weights, and gradients of earlier micro-batches: until the backward pass has left the layers,
    # and after that. Each grows by the same with every layer; their maximum need not.
    peaks: tuple[int, int]
    kernels: Counter[Kernel]
    joined: Counter[Kernel]  # the same with chains of kernels between products joined, as a compiler does


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Kernels and memory of a micro-batch with the whole model, from the counts at two depths."""

    layers: int
    counts: tuple[Counted, Counted]

    @property
    def peak(self) -> int:
        """The peak in bytes, as of `Counted`."""
        low, high = (each.peaks for each in self.counts)
        more = self.layers - DEPTHS[0]
        return max(less + more * (greater - less) for less, greater in zip(low, high, strict=True))

    @property
    def flops(self) -> float:
        """The FLOPs of products and attention."""
        return self.sum(lambda kernel: kernel.flops, compiled=False)

    def sum(self, value: Any, *, compiled: bool) -> float:
        """Return the sum of a value over all kernels. compiled: whether those of layers are joined."""
        low, high = (_sum(each.kernels, value) for each in self.counts)
        outside = low - DEPTHS[0] * (high - low)
        if not compiled:
            return outside + self.layers * (high - low)
        low, high = (_sum(each.joined, value) for each in self.counts)
        return outside + self.layers * (high - low)


def _sum(kernels: Counter[Kernel], value: Any) -> float:
    return sum(number * float(value(kernel)) for kernel, number in kernels.items())


def work_of(config: PreTrainedConfig, passes: Passes) -> Work:
    """Count the update of one micro-batch by a model of this config.

    Raises UserError if an adapter names no layer, or if the computation depends on values, which are missing here.
    """
    key = config.to_json_string(use_diff=False), repr(passes)
    if key not in _cache:
        try:
            low, high = (_counted(_at_depth(config, depth), passes) for depth in DEPTHS)
        except UserError:
            raise
        except Exception as error:  # the border to a loss and a config of others: without values, any error
            reason = str(error).partition(chr(10))[0] or type(error).__name__
            raise UserError(
                f"An update of this {config.model_type} model cannot be counted without values ({reason}): choose another loss "
                "to plan it; training needs no plan."
            ) from error
        _cache[key] = Work(layers=config.get_text_config().num_hidden_layers, counts=(low, high))
    return _cache[key]


_cache: dict[tuple[str, str], Work] = {}


def _at_depth(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """Return the config of a text model with `depth` layers.

    A mixture of experts routes tokens by their values, which are missing here: it is counted as a dense model as wide as all experts of a
    token. So is the language model of a model with pictures.
    """
    text = deepcopy(config.get_text_config())
    if is_mixture_of_experts(text) or hasattr(config, "vision_config"):
        text = _dense(text)
    text.num_hidden_layers = depth
    if getattr(text, "layer_types", None):
        text.layer_types = [*islice(cycle(text.layer_types), depth)]
    return text


def _dense(text: Any) -> PreTrainedConfig:
    inner = text.intermediate_size
    if is_mixture_of_experts(text):
        inner = text.num_experts_per_tok * (getattr(text, "moe_intermediate_size", None) or inner)
    heads = text.num_attention_heads
    sizes = {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "max_position_embeddings": text.max_position_embeddings,
        "tie_word_embeddings": bool(getattr(text, "tie_word_embeddings", False)),
    }
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return AutoConfig.for_model("qwen3" if "qwen3" in text.model_type else "llama", **sizes, head_dim=size)


def _counted(config: PreTrainedConfig, passes: Passes) -> Counted:
    counting = Counting()
    with torch.device("meta"), _checks_of_recomputation_off():
        policy, reference = _policy(config, passes), None
    if passes.algorithm.kl.coefficient > 0:
        with torch.device("meta"):
            reference = WithoutAdapter(policy) if passes.lora.is_on else _frozen(config, passes)
    device = torch.device("cuda", 0) if passes.on_gpu else torch.device("cpu")
    batch, left_out = _rollouts(config.vocab_size, passes)
    with StandIn(device, counting.mark), counting, _checks_of_recomputation_off():
        update = _update(policy, reference, passes, META)
        _call_when_layers_end(policy, counting.split)
        if passes.accumulates:
            for weight in policy.parameters():
                weight.grad = torch.empty_like(weight) if weight.requires_grad else None
        counting.start()
        before = counting.bytes
        update.run(0, batch, update.computed_before(batch) if passes.looks_ahead else None)
    assert counting.marked is not None, "the loss was differentiated"
    in_layers, after, kernels, joined = counting.marked
    kernels.update(_kernels_of_omitted(config, passes, left_out))
    logits = _omitted_logits(config, passes, left_out)
    return Counted(peaks=(in_layers - before + logits, after - before), kernels=kernels, joined=joined)


def _omitted_logits(config: PreTrainedConfig, passes: Passes, left_out: int) -> int:
    """Return the bytes of the logits of omitted tokens, as many as the head has in memory at a time."""
    counted = passes.batch.trained - left_out
    rows = left_out if passes.head_chunk is None else min(left_out, max(passes.head_chunk - counted, 0))
    return rows * int(config.vocab_size) * (4 if passes.float32_head else NAMED_DTYPES[passes.dtype].itemsize)


def _kernels_of_omitted(config: PreTrainedConfig, passes: Passes, left_out: int) -> Iterator[Kernel]:
    """Yield one kernel for all products of the head with omitted tokens, and one for all reads of their logits.

    A token is multiplied with the head's weights once in each forward pass, once more if the head runs in chunks, and in the backward pass
    for its inputs and, without an adapter, for the weights.
    """
    further = passes.looks_ahead + (passes.algorithm.kl.coefficient > 0)
    again = passes.head_chunk is not None and passes.batch.trained > passes.head_chunk
    products = 2 + again + (not passes.lora.is_on) + further
    logits = left_out * config.vocab_size
    yield Kernel(name="mm", dtype=NAMED_DTYPES[passes.dtype], flops=2 * products * logits * config.hidden_size, bytes=0)
    read = (LOGIT_BYTES + FORWARD_LOGIT_BYTES * further) * logits
    yield Kernel(name="read", dtype=torch.float32, flops=0, bytes=read)


def _call_when_layers_end(policy: Policy, tell: Callable[[], None]) -> None:
    """Call a function when a backward pass reaches the input of the first layer."""

    def of_embeddings(_: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: tell())  # type: ignore[no-untyped-call]

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
    model: PreTrainedModel = model_class_of(config)._from_config(
        config, dtype=dtype if passes.sharded else torch.float32
    )
    model.tie_weights()
    policy = Policy(model.eval(), dtype=dtype, float32_head=passes.float32_head)
    if not passes.on_gpu and dtype.itemsize < torch.float32.itemsize:
        attend_in_float32(model)
    if passes.lora.is_on:
        add_adapter(model, passes.lora)
    if passes.checkpointed:
        policy.checkpoint_activations()
    return policy


def _frozen(config: PreTrainedConfig, passes: Passes) -> Policy:
    model: PreTrainedModel = model_class_of(config)._from_config(config, dtype=torch.float32)
    model.tie_weights()
    return Policy(model.eval(), dtype=NAMED_DTYPES[passes.dtype]).requires_grad_(False)


def _update(policy: Policy, reference: Any, passes: Passes, device: torch.device) -> PolicyUpdate:
    batch = passes.batch
    budget = Budget(
        sequences=batch.sequences,
        head_chunk_tokens=passes.head_chunk,
        layout=passes.layout,
        share_prompts=passes.share_prompts,
    )
    training = {"prompts_per_step": batch.sequences, "samples_per_prompt": 1, "learning_rate": 1e-6}
    return PolicyUpdate(
        policy=policy,
        reference=reference,
        optimizer=adamw(policy.parameters(), 0.0),
        algorithm=passes.algorithm,
        training=Training.model_validate(training | {"digests_every": 0, "gates": {"truncated": None}}),
        budget=budget,
        temperature=1.0,
        max_new_tokens=batch.written,
        pad_token_id=0,
        world=World(rank=0, size=1, device=device),
    )


def _rollouts(vocabulary: int, passes: Passes) -> tuple[Batch, int]:
    """Return sequences of the greatest length, and the number of their trained tokens that are omitted.

    The head takes a few at a time, so that many take long to count and no more memory.
    """
    batch = passes.batch
    prompt = batch.longest - batch.written
    most = MOST_TOKENS if passes.on_gpu else MOST_READ // vocabulary
    counted = min(batch.written, max(most // batch.sequences, 1))
    ids = [
        [FIRST_TOKEN + number // batch.samples % (vocabulary - FIRST_TOKEN)] * batch.longest
        for number in range(batch.sequences)
    ]
    mask = [[place >= prompt and place < prompt + counted for place in range(batch.longest)]] * batch.sequences
    trained = counted * batch.sequences
    rollouts = Batch(
        sequences=TokenSequences.of(ids, mask),
        trajectories=torch.arange(batch.sequences),
        rollout_logprobs=torch.zeros(trained),
        positive=torch.ones(batch.sequences, dtype=torch.bool),
        teacher_logprobs=torch.zeros(trained) if passes.algorithm.teacher.source != "none" else None,
        advantages=torch.zeros(trained),
    )
    return rollouts, (batch.written - counted) * batch.sequences
