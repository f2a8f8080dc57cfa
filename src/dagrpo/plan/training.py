"""The memory of a process that trains: the stages train and sft."""

from collections.abc import Iterator
from dataclasses import dataclass

from dagrpo.params.lora import Lora
from dagrpo.params.rollout import Dtype
from dagrpo.params.runtime import Reduction, SftRuntime, TrainingRuntime
from dagrpo.params.schema import Params
from dagrpo.plan import activations
from dagrpo.plan.amounts import BYTES, FLOAT32, GIBIBYTE, Item, Memory, memory
from dagrpo.plan.sequences import Lengths, MicroBatch
from dagrpo.plan.shape import Shape, Trained
from dagrpo.trainer.budget import head_chunk_of, reduction_of, usual_layout, usual_sharing

ADAMW_STATES = 2  # exp_avg and exp_avg_sq, in float32
HOLES_ON_GPU = 0.1  # of the activations
# The same: glibc's allocator leaves more, most of all where layers make short-lived tensors between those that stay: beside an
# adapter, and where activations are computed again. See docs/benchmarks.md.
HOLES_ON_CPU = 0.5
MANY_HOLES_ON_CPU = 1.0
AT_REST = (
    "weights",
    "adapter",
    "AdamW states",
    "reference policy",
    "the process itself",
)  # what is there between updates
PROCESS_ON_GPU = GIBIBYTE  # CUDA's context and the libraries' workspaces
PROCESS_ON_CPU = GIBIBYTE // 2  # Python with torch and transformers, without the files that it maps


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What decides the memory of such a process, in either stage."""

    shape: Shape
    trained: Trained
    batch: MicroBatch
    dtype: Dtype
    processes: int
    reference: bool  # whether a reference policy is asked
    second_model: bool  # whether that one has weights of its own
    support: bool
    patches: int  # of a micro-batch, that a trained tower looks at; 0: none
    checkpointed: bool  # whether activations are computed again
    head_chunk: int | None  # tokens whose logits are in memory at a time; None: all
    reduction: Reduction
    float32_head: bool  # whether logits are computed in float32, whatever the rest is
    packed: bool  # whether sequences are end to end, without padding
    gpu: bool

    @property
    def certain(self) -> int:
        """Bytes that it takes whatever its micro-batches are: weights, gradients and optimizer."""
        return self._weights() + self._trained(FLOAT32) + self._trained(ADAMW_STATES * FLOAT32)

    def memory(self, what: str) -> Memory:
        """All of it, at the peak of a step."""
        return memory(what, self._items())

    def _items(self) -> Iterator[Item]:
        trained, shared = self.trained, f" / {self.processes} processes" if self.processes > 1 else ""
        of_weights = f"float32, {trained.weights:,} parameters{shared}"
        yield Item(name="weights", bytes=self._weights(), how=of_weights)
        adapter = self._part(trained.adapter) * FLOAT32
        yield Item(name="adapter", bytes=adapter, how=f"float32, {trained.adapter:,} parameters{shared}")
        of_trained = f"{trained.trained:,} trained parameters{shared}"
        yield Item(name="gradients", bytes=self._trained(FLOAT32), how=f"float32, {of_trained}")
        states = self._trained(ADAMW_STATES * FLOAT32)
        yield Item(name="AdamW states", bytes=states, how=f"two in float32, {of_trained}")
        waits = self.processes > 1 and self.batch.number > 1 and self.reduction == "each_mini_batch"
        how = f"float32, {trained.trained:,} trained parameters, until the last micro-batch (reduce_gradients)"
        yield Item(name="gradients not yet reduced", bytes=trained.trained * FLOAT32 if waits else 0, how=how)
        if self.second_model:
            yield Item(name="reference policy", bytes=self._weights(), how=of_weights)
        yield self._computed_copy()
        yield from self._of_micro_batch()
        yield Item(
            name="the process itself",
            bytes=PROCESS_ON_GPU if self.gpu else PROCESS_ON_CPU,
            how="CUDA and libraries" if self.gpu else "Python and libraries",
        )

    def _weights(self) -> int:
        trained = self.trained
        return FLOAT32 * (trained.whole + self._part(trained.weights - trained.whole))

    def _trained(self, bytes_of_each: int) -> int:
        return self._part(self.trained.trained) * bytes_of_each

    def _part(self, count: int) -> int:
        return -(-count // self.processes)

    def _computed_copy(self) -> Item:
        """What a forward pass computes with, where that is not the weights themselves."""
        each = BYTES[self.dtype]
        if self.processes > 1:
            gathered = self.shape.outside + 2 * self.shape.block
            how = f"{self.dtype}, two blocks and what is outside them, and float32 gradients of as much"
            return Item(name="gathered by FSDP", bytes=gathered * (each + FLOAT32), how=how)
        if each == FLOAT32:
            return Item(name="computed copy", bytes=0, how="")
        copies = 2 if self.reference else 1
        passing = self.shape.largest * (each + FLOAT32)  # a gradient of the copy, on its way to that of the weight
        how = f"{self.dtype}, {self.trained.weights:,} parameters" + (", and the reference's" if copies == 2 else "")
        return Item(name="computed copy", bytes=copies * self.trained.weights * each + passing, how=how)

    def _of_micro_batch(self) -> Iterator[Item]:
        batch, shape = self.batch, self.shape
        types = BYTES[self.dtype], BYTES[self.dtype] if self.gpu else FLOAT32  # that of attention is the second
        layers = activations.of_layers(shape.text, batch, *types, checkpointed=self.checkpointed, packed=self.packed)
        kept = "inputs of layers, and all of one" if self.checkpointed else "layers"
        once = f" and {batch.prompts:,} shared prompts of {batch.prompt:,}" if batch.prompts else ""
        how = f"{batch.tokens:,} tokens{once} x {shape.text.layers} {kept}, in {self.dtype}"
        yield Item(name="activations", bytes=layers, how=how)
        many = bool(self.trained.adapter) or self.checkpointed
        share = HOLES_ON_GPU if self.gpu else MANY_HOLES_ON_CPU if many else HOLES_ON_CPU
        how = f"{share:.0%} of the activations: memory between tensors that the allocator cannot use"
        yield Item(name="holes", bytes=round(share * layers), how=how)
        at_once = min(batch.trained, self.head_chunk or batch.trained)
        of_head = "float32" if self.float32_head else self.dtype
        logits = activations.of_logits(
            shape.vocabulary, at_once, BYTES[of_head], gpu=self.gpu, reference=self.reference, support=self.support
        )
        how = f"{at_once:,} trained tokens x {shape.vocabulary:,}, {of_head}, and some of them in float32"
        yield Item(name="logits", bytes=logits, how=how)
        head = shape.text.width * (2 * shape.vocabulary + batch.trained) * FLOAT32
        how = "weights and their gradient, and what enters, in float32"
        yield Item(name="float32 head", bytes=head if self.float32_head and BYTES[self.dtype] < FLOAT32 else 0, how=how)
        tower = 0
        if shape.pictures is not None and self.patches:
            seen = MicroBatch(
                sequences=1, tokens=self.patches, trained=0, longest=self.patches // max(batch.pictures, 1), number=1
            )
            stack = shape.pictures.stack
            tower = activations.of_layers(stack, seen, *types, checkpointed=self.checkpointed)
        yield Item(name="vision tower", bytes=tower, how=f"{self.patches:,} patches in {self.dtype}")
        # AdamW on a GPU works on all tensors at once, and makes a copy of one state; by then activations are gone.
        update = self._trained(FLOAT32) if self.gpu else 0
        how = "of all trained parameters, beyond what the activations leave"
        yield Item(name="copies of the optimizer", bytes=max(update - layers - logits - tower, 0), how=how)


def of_train(params: Params, shape: Shape, lengths: Lengths, pixels: int | None, *, gpu: bool) -> Training:
    """Of the stage train. pixels: of a picture, at most; None: not known. UserError: the adapter names no layer."""
    training, algorithm = params.training, params.algorithm
    batch = MicroBatch.of_training(params, lengths, share_prompts=shares_prompts(params, shape, gpu=gpu))
    trained = shape.trained(training.lora, training.vision)
    return Training(
        shape=shape,
        trained=trained,
        batch=batch,
        dtype=training.dtype,
        processes=params.runtime.training.processes,
        reference=algorithm.kl.coefficient > 0,
        second_model=algorithm.kl.coefficient > 0 and not training.lora.is_on,
        support=params.rollout.cuts,
        patches=_patches(shape, batch, pixels, params) if training.vision == "trained" else 0,
        checkpointed=params.runtime.training.activation_checkpointing,
        head_chunk=head_chunk_of(params.runtime.training, on_gpu=gpu),
        reduction=reduction_of(params.runtime.training, on_gpu=gpu),
        float32_head=params.rollout.head_dtype == "float32",
        packed=_is_packed(params.runtime.training, shape, training.dtype, gpu=gpu),
        gpu=gpu,
    )


def of_sft(params: Params, shape: Shape, lengths: Lengths, pixels: int | None, *, gpu: bool) -> Training:
    """Of the stage sft. UserError: as above."""
    sft: Lora = params.sft.lora
    batch = MicroBatch.of_sft(params, lengths)
    return Training(
        shape=shape,
        trained=shape.trained(sft, params.sft.vision),
        batch=batch,
        dtype=params.sft.dtype,
        processes=params.runtime.sft.processes,
        reference=False,
        second_model=False,
        support=False,
        patches=_patches(shape, batch, pixels, None) if params.sft.vision == "trained" else 0,
        checkpointed=params.runtime.sft.activation_checkpointing,
        head_chunk=head_chunk_of(params.runtime.sft, on_gpu=gpu),
        reduction=reduction_of(params.runtime.sft, on_gpu=gpu),
        float32_head=False,
        packed=_is_packed(params.runtime.sft, shape, params.sft.dtype, gpu=gpu),
        gpu=gpu,
    )


def shares_prompts(params: Params, shape: Shape, *, gpu: bool) -> bool:
    """Whether GRPO computes the prompt of a group once, as far as that can be known without weights."""
    runtime = params.runtime.training
    if runtime.share_prompts is not None:
        return runtime.share_prompts
    is_packed = _is_packed(runtime, shape, params.training.dtype, gpu=gpu)
    return usual_sharing("packed" if is_packed else "padded", on_gpu=gpu)


def _is_packed(runtime: TrainingRuntime | SftRuntime, shape: Shape, dtype: Dtype, *, gpu: bool) -> bool:
    """As trainer/gates/layout.py decides, by what can be known without weights: whether the model takes pictures."""
    share = isinstance(runtime, TrainingRuntime) and bool(runtime.share_prompts)
    usual = usual_layout(narrow=BYTES[dtype] < FLOAT32, on_gpu=gpu, share_prompts=share, sharded=runtime.processes > 1)
    return shape.pictures is None and (runtime.layout or usual) == "packed"


def _patches(shape: Shape, batch: MicroBatch, pixels: int | None, params: Params | None) -> int:
    """Of the pictures of a micro-batch, one for each problem; 0 where none are shown, or their size is not known."""
    if shape.pictures is None or pixels is None:
        return 0
    each = pixels // shape.pictures.patch_size**2
    most = params.runtime.training.micro_batch_patches if params is not None else None
    seen = batch.pictures * each
    return seen if most is None else min(seen, max(most, each))
