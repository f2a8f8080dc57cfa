"""Memory of a process that trains: the stages train and sft."""

from collections.abc import Iterator
from dataclasses import dataclass

from dagrpo.config.schema import Params
from dagrpo.engine import engine_of, may_share_memory
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, GIBIBYTE, Item, Memory, memory
from dagrpo.pipeline.plan.sequences import Lengths, MicroBatch
from dagrpo.pipeline.plan.shape import Shape, Trained
from dagrpo.pipeline.plan.update import Passes, Work, work_of
from dagrpo.rollout.config import Dtype
from dagrpo.trainer.batches.budget import head_chunk_of, reduction_of, usual_layout, usual_sharing
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.runtime import Layout, Reduction, SftRuntime, TrainingRuntime
from dagrpo.trainer.update.objective import Objective

ADAMW_STATES = 2  # exp_avg and exp_avg_sq, in float32
HOLES_ON_GPU = 0.1  # of what the passes take: memory between tensors that the allocator cannot use
# glibc's allocator leaves more, most of all where layers make short-lived tensors between those that stay: beside an adapter, and where
# activations are computed again. See docs/benchmarks.md.
HOLES_ON_CPU = 0.5
MANY_HOLES_ON_CPU = 1.0
# What is there between updates:
AT_REST = ("weights", "adapter", "AdamW states", "reference policy", "the process itself")
PROCESS_ON_GPU = GIBIBYTE  # CUDA's context and the libraries' workspaces
PROCESS_ON_CPU = GIBIBYTE // 2  # Python with torch and transformers, without the files that it maps


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Process that trains, with the settings that decide its memory and time."""

    shape: Shape
    trained: Trained
    passes: Passes
    processes: int
    second_model: bool  # whether the reference policy is a second model in memory
    patches: int  # of a micro-batch, that a trained tower looks at; 0: none
    reduction: Reduction
    sync_bytes: int  # of a bucket of weights on this device, on its way to the engine

    @property
    def certain(self) -> int:
        """Return the bytes that any micro-batch needs: weights, gradients and optimizer."""
        return self._weights() + self._trained(FLOAT32) + self._trained(ADAMW_STATES * FLOAT32)

    @property
    def work(self) -> Work:
        """Return the counted work of a micro-batch."""
        return work_of(self.shape.model.config, self.passes)

    def memory(self, what: str) -> Memory:
        """Return the memory at the peak of a step."""
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
        waits = self.processes > 1 and self.passes.batch.number > 1 and self.reduction == "each_mini_batch"
        how = f"float32, {trained.trained:,} trained parameters, until the last micro-batch (reduce_gradients)"
        yield Item(name="gradients not yet reduced", bytes=trained.trained * FLOAT32 if waits else 0, how=how)
        if self.second_model:
            yield Item(name="reference policy", bytes=self._weights(), how=of_weights)
        gathered = (self.shape.outside + 2 * self.shape.block) * (BYTES[self.passes.dtype] + FLOAT32)
        how = f"{self.passes.dtype}, two blocks and what is outside them, and float32 gradients of as much"
        yield Item(name="gathered by FSDP", bytes=gathered if self.processes > 1 else 0, how=how)
        yield from self._of_micro_batch()
        process, what = (PROCESS_ON_GPU, "CUDA") if self.passes.on_gpu else (PROCESS_ON_CPU, "Python")
        yield Item(name="the process itself", bytes=process, how=f"{what} and libraries")

    def _of_micro_batch(self) -> Iterator[Item]:
        passes, batch = self.passes, self.passes.batch
        peak = self.work.peak - (0 if passes.accumulates else self._trained(FLOAT32))
        peak = max(peak, 0)
        how = (
            f"{batch.sequences:,} sequences of {batch.longest:,} tokens through {self.work.layers} layers and the head, in "
            f"{passes.dtype}: counted on the trainer's update without values"
        )
        yield Item(name="passes of a micro-batch", bytes=peak, how=how)
        many = bool(self.trained.adapter) or passes.checkpointed
        share = HOLES_ON_GPU if passes.on_gpu else MANY_HOLES_ON_CPU if many else HOLES_ON_CPU
        how = f"{share:.0%} of the passes: memory between tensors that the allocator cannot use"
        yield Item(name="holes", bytes=round(share * peak), how=how)
        yield Item(name="vision tower", bytes=self._tower(), how=f"{self.patches:,} patches in {passes.dtype}")
        buckets = min(2 * self.sync_bytes, self.shape.weights * BYTES[passes.dtype])
        how = "two at a time, beyond what the passes leave"
        yield Item(name="weight-sync buckets", bytes=max(buckets - peak, 0), how=how)

    def _tower(self) -> int:
        """Return the bytes that a trained tower's layers keep of their patches.

        For each of two norms the stream in float32, normalised, and scaled; queries, keys, values and the result of attention; gate, its
        activation, up, and their product.
        """
        if self.shape.pictures is None:
            return 0
        stack, each = self.shape.pictures.stack, BYTES[self.passes.dtype]
        layer = 2 * stack.width * (FLOAT32 + 2 * each) + 4 * (stack.width + stack.inner) * each
        per_layer = stack.layers * stack.width * each + layer if self.passes.checkpointed else stack.layers * layer
        return self.patches * per_layer

    def _weights(self) -> int:
        trained = self.trained
        return FLOAT32 * (trained.whole + self._part(trained.weights - trained.whole))

    def _trained(self, bytes_of_each: int) -> int:
        return self._part(self.trained.trained) * bytes_of_each

    def _part(self, count: int) -> int:
        return -(-count // self.processes)


def of_train(params: Params, shape: Shape, lengths: Lengths, pixels: int | None, *, gpu: bool) -> Training:
    """Return the process of the stage train. pixels: the most of a picture; None: unknown.

    Raises UserError if the adapter names no layer.
    """
    training, algorithm, runtime = params.training, params.algorithm, params.runtime.training
    share = shares_prompts(params, shape, gpu=gpu)
    batch = MicroBatch.of_training(params, lengths, share_prompts=share)
    engine = params.runtime.engine
    objective = Objective(algorithm, params.rollout.max_new_tokens, None)
    passes = Passes(
        batch=batch,
        dtype=training.dtype,
        layout=_layout(runtime, shape, training.dtype, gpu=gpu),
        on_gpu=gpu,
        algorithm=algorithm,
        lora=training.lora,
        checkpointed=runtime.activation_checkpointing,
        head_chunk=head_chunk_of(runtime, on_gpu=gpu),
        float32_head=params.rollout.head_dtype == "float32" and training.dtype != "float32",
        share_prompts=share,
        sharded=runtime.processes > 1,
        accumulates=batch.number > 1 or runtime.processes > 1,
        looks_ahead=training.mini_batches > 1 or objective.looks_ahead,
    )
    return Training(
        shape=shape,
        trained=shape.trained(training.lora, training.vision),
        passes=passes,
        processes=runtime.processes,
        second_model=algorithm.kl.coefficient > 0 and not training.lora.is_on,
        patches=_patches(shape, batch, pixels, params) if training.vision == "trained" else 0,
        reduction=reduction_of(runtime, on_gpu=gpu),
        sync_bytes=engine_of(engine).footprint.sync_bytes if gpu and may_share_memory(engine) else 0,
    )


def of_sft(params: Params, shape: Shape, lengths: Lengths, pixels: int | None, *, gpu: bool) -> Training:
    """Return the process of the stage sft. Raises UserError if the adapter names no layer."""
    sft, runtime = params.sft, params.runtime.sft
    batch = MicroBatch.of_sft(params, lengths)
    lora: Lora = sft.lora
    passes = Passes(
        batch=batch,
        dtype=sft.dtype,
        layout=_layout(runtime, shape, sft.dtype, gpu=gpu),
        on_gpu=gpu,
        lora=lora,
        checkpointed=runtime.activation_checkpointing,
        head_chunk=head_chunk_of(runtime, on_gpu=gpu),
        sharded=runtime.processes > 1,
        accumulates=batch.number > 1 or runtime.processes > 1,
    )
    return Training(
        shape=shape,
        trained=shape.trained(lora, sft.vision),
        passes=passes,
        processes=runtime.processes,
        second_model=False,
        patches=_patches(shape, batch, pixels, None) if sft.vision == "trained" else 0,
        reduction=reduction_of(runtime, on_gpu=gpu),
        sync_bytes=0,
    )


def shares_prompts(params: Params, shape: Shape, *, gpu: bool) -> bool:
    """Return True if GRPO computes a group's prompt once, as far as it is decided without weights."""
    runtime = params.runtime.training
    if runtime.share_prompts is not None:
        return runtime.share_prompts
    return usual_sharing(_layout(runtime, shape, params.training.dtype, gpu=gpu), on_gpu=gpu)


def _layout(runtime: TrainingRuntime | SftRuntime, shape: Shape, dtype: Dtype, *, gpu: bool) -> Layout:
    """Return the decision of trainer/checks/layout.py, as far as it is known without weights: whether the model takes pictures."""
    share = isinstance(runtime, TrainingRuntime) and bool(runtime.share_prompts)
    usual = usual_layout(narrow=BYTES[dtype] < FLOAT32, on_gpu=gpu, share_prompts=share, sharded=runtime.processes > 1)
    return "padded" if shape.pictures is not None else runtime.layout or usual


def _patches(shape: Shape, batch: MicroBatch, pixels: int | None, params: Params | None) -> int:
    """Return the patches of a micro-batch's pictures, one picture per problem; 0 without pictures, or if their size is unknown."""
    if shape.pictures is None or pixels is None:
        return 0
    each = pixels // shape.pictures.patch_size**2
    most = params.runtime.training.micro_batch_patches if params is not None else None
    seen = batch.pictures * each
    return seen if most is None else min(seen, max(most, each))
