"""Memory of a process that trains: the stages train and sft."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.config.schema import Params
from dagrpo.rollout.config import Dtype
from dagrpo.trainer.backends import BACKENDS
from dagrpo.trainer.batches import micro_batches as limits
from dagrpo.trainer.config.runtime import Layout, Reduction, SftRuntime, TrainingRuntime
from dagrpo.trainer.config.sft import MomentsDtype, Sft
from dagrpo.trainer.config.training import Training as Section
from dagrpo.trainer.update.objective import Objective
from dagrpo_plan.amounts import BYTES, FLOAT32, GIBIBYTE, Item, Lengths, Memory, MicroBatch, memory
from dagrpo_plan.models import Models, Shape, Trained

ADAPTED = 7  # layers of a block beside which an adapter keeps `rank` numbers of each token


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Settings of a micro-batch that decide its memory."""

    batch: MicroBatch
    dtype: Dtype
    layout: Layout
    on_gpu: bool
    reference: bool = False  # whether a reference policy computes its logprobs
    rank: int = 0  # of an adapter; 0: all weights are trained
    checkpointed: bool = False  # whether activations are computed again
    head_chunk: int | None = None  # tokens whose logits are in memory at a time; None: all
    float32_head: bool = False
    sharded: bool = False  # whether FSDP gathers the weights, layer by layer, which are counted elsewhere
    accumulates: bool = True  # whether gradients of an earlier micro-batch are there already
    looks_ahead: bool = False  # whether the policy runs once more before its update


class Activations:
    """Bytes of a micro-batch beside float32 weights and their gradients."""

    def __init__(self, shape: Shape, passes: Passes) -> None:
        self._shape, self._passes, self._width = shape, passes, BYTES[passes.dtype]
        text, self._narrow = shape.text, self._width < FLOAT32
        self._hidden, self._vocabulary = int(text.hidden_size), int(text.vocab_size)
        self._sums = FLOAT32 * int(text.num_attention_heads)  # of a token's attention
        self._tokens = passes.batch.computed
        self._stream = self._width * self._hidden * self._tokens
        self._head = self._width * self._vocabulary * self._hidden
        self._tied = bool(getattr(text, "tie_word_embeddings", False))
        self._casts = self._narrow and not passes.sharded  # the weights, whose gradients in `dtype` take their place
        self._norm = FLOAT32 + (0 if passes.rank else self._width)  # of each number: in float32, and normalised
        layer = self._of_layer()
        self._kept = int(text.num_hidden_layers) * (self._stream if passes.checkpointed else layer)
        self._again = layer - (0 if self._narrow else self._stream) if passes.checkpointed else 0

    @property
    def peak(self) -> int:
        """Return the most bytes. A first micro-batch has no gradients before its backward pass."""
        moments = [self._in_head(), self._in_layers(), *self._in_forward_passes()]
        if self._passes.rank:
            return max(moments)
        if self._passes.accumulates:
            return max(*moments, self._in_embeddings())
        return max(max(moments) - FLOAT32 * self._shape.weights, self._head)

    def _of_layer(self) -> int:
        """Return what a layer keeps: two norms and their results, gate, its activation, up and their product, and attention."""
        shape, passes, hidden = self._shape, self._passes, self._hidden
        each = 2 * hidden * (self._norm + self._width) + self._width * (4 * shape.mlp_width + ADAPTED * passes.rank)
        each += self._norm * (shape.queries + shape.keys) if shape.norms_queries else 0
        return self._tokens * each + self._of_attention()

    def _of_attention(self) -> int:
        """Return what attention keeps: of the kernel for packed rows queries, keys, values and result.

        Elsewhere keys and values are there for each query head, on a CPU in float32; padded sequences have a mask, and shared prompts are
        looked up for each of their sequences.
        """
        shape, passes, batch = self._shape, self._passes, self._passes.batch
        if passes.layout == "packed" and passes.on_gpu and self._narrow:
            return self._tokens * (2 * self._width * (shape.queries + shape.keys) + self._sums)
        wide, seen = self._width if passes.on_gpu else FLOAT32, batch.sequences * batch.longest
        if passes.layout == "padded":
            return seen * (wide * (4 * shape.queries + batch.longest) + self._sums)
        of_results = self._tokens * self._width * shape.queries
        return seen * (wide * (5 if batch.samples > 1 else 4) * shape.queries + self._sums) + of_results

    def _of_head(self) -> tuple[int, int]:
        """Return the bytes of the hidden states of trained tokens, and of the logits that are in memory at a time."""
        width = FLOAT32 if self._passes.float32_head else self._width
        trained = self._passes.batch.trained
        rows = min(self._passes.head_chunk or trained, trained)
        return width * self._hidden * trained, width * self._vocabulary * rows

    def _reading(self) -> int:
        """Return the bytes of what is computed of some rows of logits in float32 (trainer/model/head.py)."""
        numbers = min(self._of_head()[1] // self._width, limits.LAUNCHED if self._passes.on_gpu else limits.CACHED)
        return FLOAT32 * numbers * (2 if self._narrow and not self._passes.float32_head else 1)

    def _after_forward(self) -> int:
        """Return what a forward pass has left: kept ones, the last norm, and hidden states; embeddings that are not tied are not kept."""
        cast = self._width * self._shape.weights - (0 if self._tied else self._head) if self._casts else 0
        return cast + self._kept + self._norm * self._stream // self._width + self._of_head()[0]

    def _in_head(self) -> int:
        """Return the bytes of the backward pass of the head, whose gradient is added up in float32."""
        hidden, logits = self._of_head()
        total = self._after_forward() + hidden + logits
        if self._passes.rank:
            return total + self._reading()
        wide = 2 * self._head
        if not self._narrow:
            return total + self._head + self._reading()
        if self._passes.float32_head:  # its weight, too, and no cast one
            return total + 2 * wide - (self._head if self._casts else 0) + self._reading()
        return total + wide + max(self._reading(), self._head)

    def _in_layers(self) -> int:
        """Return the bytes of the backward pass of the last layer, in its MLP, after its forward pass if that is computed again."""
        shape, cast = self._shape, 0
        if self._casts:
            outside = shape.outside if self._passes.rank else 0 if self._tied else self._head // self._width
            cast = self._width * (shape.weights - outside)
            cast += 0 if self._passes.rank else self._width * self._hidden * shape.mlp_width
        elif self._tied and not self._passes.rank:
            cast = self._head  # the head's gradient, which waits for that of the embeddings
        return cast + self._kept + self._again + self._stream + 2 * self._width * shape.mlp_width * self._tokens

    def _in_embeddings(self) -> int:
        """Return the bytes at the end of the backward pass."""
        if self._casts:
            return self._width * self._shape.weights + FLOAT32 * self._head // self._width
        return 3 * self._head if self._tied else self._head + self._stream

    def _in_forward_passes(self) -> Iterator[int]:
        """Yield the bytes of forward passes beside what is kept: of a reference, and of a policy whose weights are all frozen."""
        cast, logits = self._width * self._shape.weights if self._casts else 0, self._of_head()[1]
        trained = self._passes.batch.trained
        if self._passes.rank:
            yield (
                self._after_forward() + (self._head if self._casts and not self._tied else 0) + logits + self._reading()
            )
        if self._passes.reference:
            waiting = logits if (self._passes.head_chunk or trained) >= trained else 0  # those of the policy
            layer = 3 * self._width * self._shape.mlp_width * self._tokens
            yield self._after_forward() + waiting + cast + max(logits + self._reading(), layer)


TRAINING = "training process"
ADAMW_STATES = 2  # exp_avg and exp_avg_sq
# Memory between tensors that the allocator cannot use, in that of the passes. glibc's leaves more than a GPU's, most of all where layers
# make short-lived tensors between those that stay: beside an adapter, and with recomputation. See docs/benchmarks.md.
HOLES_ON_GPU, HOLES_ON_CPU, MANY_HOLES_ON_CPU = 0.1, 0.5, 1.0
PROCESS_ON_GPU = GIBIBYTE  # CUDA's context and the libraries' workspaces
PROCESS_ON_CPU = GIBIBYTE // 2  # Python with torch and transformers, without the files that it maps
# What is there between updates:
AT_REST = ("weights", "adapter", "AdamW states", "reference policy", "the process itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Process that trains, with the settings that decide its memory and time."""

    shape: Shape
    trained: Trained
    passes: Passes
    processes: int  # of all nodes
    patches: int  # of a micro-batch, that a trained tower looks at; 0: none
    reduction: Reduction
    moments: MomentsDtype  # type of AdamW's states
    second_model: bool = False  # whether the reference policy is a second model in memory
    copies: int = 1  # of the policy, each over as many processes
    may_compile: bool = False  # whether torch compiles the layers

    def memory(self) -> Memory:
        """Return the memory at the peak of a step."""
        return memory(TRAINING, self._items())

    def bytes_on_links(self, mini_batches: int, share: float) -> float:
        """Return the bytes that a process of one machine receives in a step: its passes' weights, twice, and float32 gradients.

        share: of the passes, those that sequences of the usual length take.
        """
        number = max(share * self.passes.batch.number, 1)
        gathered = 2 * number * self.trained.weights * BYTES[self.passes.dtype]
        reduced = (number if self.reduction == "each_micro_batch" else 1) * self.trained.trained * FLOAT32
        return mini_batches * (gathered + reduced) * (1 - 1 / self.processes)

    def bytes_between_nodes(self, mini_batches: int) -> int:
        """Return the bytes that a process receives in a step, most of them from other nodes.

        Each pass gathers the weights twice, unless each node has a copy, and gradients are reduced in float32: whole ones into shares; of
        several copies, the shares' sums to and fro.
        """
        passes = self.passes.batch.number
        gathered = 0 if self.copies > 1 else 2 * passes * self.trained.weights * BYTES[self.passes.dtype]
        reductions = passes if self.reduction == "each_micro_batch" else 1
        reduced = 2 * self._part(self.trained.trained) if self.copies > 1 else self.trained.trained
        return mini_batches * (gathered + reductions * reduced * FLOAT32)

    def _items(self) -> Iterator[Item]:
        over = self.processes // self.copies
        trained, shared = self.trained, f" / {over} processes" if over > 1 else ""
        of_weights = f"float32, {trained.weights:,} parameters{shared}"
        of_trained = f"{trained.trained:,} trained parameters{shared}"
        gradients = self._part(trained.trained) * FLOAT32
        yield Item(name="weights", bytes=self._weights(), how=of_weights)
        adapter = self._part(trained.adapter) * FLOAT32
        yield Item(name="adapter", bytes=adapter, how=f"float32, {trained.adapter:,} parameters{shared}")
        yield Item(name="gradients", bytes=gradients, how=f"float32, {of_trained}")
        states = ADAMW_STATES * self._part(trained.trained) * BYTES[self.moments]
        yield Item(name="AdamW states", bytes=states, how=f"two in {self.moments}, {of_trained}")
        if self.second_model:
            yield Item(name="reference policy", bytes=self._weights(), how=of_weights)
        if self.processes > 1:
            yield from self._of_fsdp()
        yield from self._of_micro_batch()
        process, what = (PROCESS_ON_GPU, "CUDA") if self.passes.on_gpu else (PROCESS_ON_CPU, "Python")
        yield Item(name="the process itself", bytes=process, how=f"{what} and libraries")

    def _of_fsdp(self) -> Iterator[Item]:
        if self.passes.batch.number > 1 and self.reduction == "each_mini_batch":
            whole = self.trained.trained
            how = f"float32, {whole:,} trained parameters, until the last micro-batch (reduce_gradients)"
            yield Item(name="gradients not yet reduced", bytes=whole * FLOAT32, how=how)
        gathered = (self.shape.outside + 2 * self.shape.block) * (BYTES[self.passes.dtype] + FLOAT32)
        how = f"{self.passes.dtype}, two blocks and what is outside them, and float32 gradients of as much"
        yield Item(name="gathered by FSDP", bytes=gathered, how=how)

    def _of_micro_batch(self) -> Iterator[Item]:
        passes, batch = self.passes, self.passes.batch
        peak = Activations(self.shape, passes).peak
        how = f"{batch.sequences:,} sequences of {batch.longest:,} tokens in {passes.dtype}"
        yield Item(name="passes of a micro-batch", bytes=peak, how=how)
        many = bool(self.trained.adapter) or passes.checkpointed
        share = HOLES_ON_GPU if passes.on_gpu else MANY_HOLES_ON_CPU if many else HOLES_ON_CPU
        how = f"{share:.0%} of the passes: memory between tensors that the allocator cannot use"
        yield Item(name="holes", bytes=round(share * peak), how=how)
        yield Item(name="vision tower", bytes=self._tower(), how=f"{self.patches:,} patches in {passes.dtype}")

    def _tower(self) -> int:
        """Return the bytes that a trained tower's layers keep of their patches.

        For each of two norms the stream in float32, normalised, and scaled; queries, keys, values and the result of attention; gate, its
        activation, up, and their product.
        """
        if not self.patches:
            return 0
        tower, each = self.shape.vision, BYTES[self.passes.dtype]
        width, depth = tower.hidden_size, tower.depth
        layer = 2 * width * (FLOAT32 + 2 * each) + 4 * (width + tower.intermediate_size) * each
        per_patch = depth * width * each + layer if self.passes.checkpointed else depth * layer
        return int(self.patches * per_patch)

    def _weights(self) -> int:
        return FLOAT32 * (self.trained.whole + self._part(self.trained.weights - self.trained.whole))

    def _part(self, count: int) -> int:
        return -(-count * self.copies // self.processes)


def trains_itself(params: Params) -> bool:
    """Return False if training.backend is another program, whose memory and time are not known."""
    return not BACKENDS.get(params.training.backend.name).launches_processes


def of_train(params: Params, models: Models, *, gpu: bool) -> Training:
    """Return the process of the stage train. Raises UserError for an unknown task, or if the adapter names no layer."""
    training, algorithm, runtime, shape = params.training, params.algorithm, params.runtime.training, models.policy
    share = runtime.share_prompts
    if share is None:
        share = limits.usual_sharing(_layout(runtime, shape, training.dtype, gpu=gpu), on_gpu=gpu)
    batch = MicroBatch.of_training(params, Lengths.of_training(params, shape.positions), share_prompts=share)
    looks_ahead = Objective(algorithm, params.rollout.max_new_tokens, None).looks_ahead
    process = _process(models, training, runtime, batch, gpu=gpu, processes=runtime.processes * params.runtime.nodes)
    return replace(
        process,
        passes=replace(
            process.passes,
            reference=algorithm.kl.coefficient > 0,
            float32_head=params.rollout.head_dtype == "float32" and training.dtype != "float32",
            looks_ahead=training.mini_batches > 1 or looks_ahead,
        ),
        copies=params.runtime.copies,
        second_model=algorithm.kl.coefficient > 0 and not training.lora.is_on,
    )


def of_sft(params: Params, models: Models, *, gpu: bool) -> Training:
    """Return the process of the stage sft. Raises UserError like `of_train`."""
    batch = MicroBatch.of_sft(params, Lengths.of_training(params, models.policy.positions))
    return _process(models, params.sft, params.runtime.sft, batch, gpu=gpu, processes=params.runtime.sft.processes)


def _process(
    models: Models,
    section: Section | Sft,
    runtime: TrainingRuntime | SftRuntime,
    batch: MicroBatch,
    *,
    gpu: bool,
    processes: int,
) -> Training:
    """Return a process with one model, by what the sections of both stages have in common."""
    shape, most = models.policy, runtime.micro_batch_patches if isinstance(runtime, TrainingRuntime) else None
    passes = Passes(
        batch=batch,
        dtype=section.dtype,
        layout=_layout(runtime, shape, section.dtype, gpu=gpu),
        on_gpu=gpu,
        rank=section.lora.rank,
        checkpointed=runtime.activation_checkpointing,
        head_chunk=limits.head_chunk_of(runtime, on_gpu=gpu),
        sharded=processes > 1,
        accumulates=batch.number > 1 or processes > 1,
    )
    return Training(
        shape=shape,
        trained=shape.trained(section.lora, section.vision),
        passes=passes,
        processes=processes,
        patches=_patches(models, batch, most) if section.vision == "trained" else 0,
        reduction=limits.reduction_of(runtime, on_gpu=gpu),
        moments=section.moments_dtype,
        may_compile=runtime.compile is not False and not is_mixture_of_experts(shape.text),
    )


def _layout(runtime: TrainingRuntime | SftRuntime, shape: Shape, dtype: Dtype, *, gpu: bool) -> Layout:
    """Return the decision of trainer/model/prepare.py, as far as it is known without weights: whether the model takes pictures."""
    share = isinstance(runtime, TrainingRuntime) and bool(runtime.share_prompts)
    usual = limits.usual_layout(narrow=BYTES[dtype] < FLOAT32, on_gpu=gpu, share_prompts=share)
    return "padded" if shape.vision is not None else runtime.layout or usual


def _patches(models: Models, batch: MicroBatch, most: int | None) -> int:
    """Return the patches of a micro-batch's pictures, one per problem; 0 without pictures, or if their size is unknown."""
    if models.policy.vision is None or models.pixels is None:
        return 0
    each = models.pixels // int(models.policy.vision.patch_size) ** 2
    return batch.pictures * each if most is None else min(batch.pictures * each, max(most, each))
