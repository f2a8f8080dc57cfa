"""Memory of a process that trains: the stages train and sft."""

from collections.abc import Iterator
from dataclasses import dataclass

from dagrpo.checkpoints.experts import is_mixture_of_experts
from dagrpo.config.schema import Params
from dagrpo.pipeline.plan.activations import Activations, Passes
from dagrpo.pipeline.plan.amounts import BYTES, FLOAT32, GIBIBYTE, Item, Memory, memory
from dagrpo.pipeline.plan.models import Models
from dagrpo.pipeline.plan.sequences import Lengths, MicroBatch
from dagrpo.pipeline.plan.shape import Shape, Trained
from dagrpo.rollout.config import Dtype
from dagrpo.trainer.backends import BACKENDS
from dagrpo.trainer.batches.budget import head_chunk_of, reduction_of, usual_layout, usual_sharing
from dagrpo.trainer.config.runtime import Layout, Reduction, SftRuntime, TrainingRuntime
from dagrpo.trainer.config.sft import MomentsDtype
from dagrpo.trainer.update.objective import Objective

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
    second_model: bool  # whether the reference policy is a second model in memory
    patches: int  # of a micro-batch, that a trained tower looks at; 0: none
    reduction: Reduction
    moments: MomentsDtype  # type of AdamW's states
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
    layout = _layout(runtime, shape, training.dtype, gpu=gpu)
    share = runtime.share_prompts
    share = usual_sharing(layout, on_gpu=gpu) if share is None else share
    batch = MicroBatch.of_training(params, Lengths.of_training(params, shape.positions), share_prompts=share)
    processes = runtime.processes * params.runtime.nodes
    passes = Passes(
        batch=batch,
        dtype=training.dtype,
        layout=layout,
        on_gpu=gpu,
        reference=algorithm.kl.coefficient > 0,
        rank=training.lora.rank,
        checkpointed=runtime.activation_checkpointing,
        head_chunk=head_chunk_of(runtime, on_gpu=gpu),
        float32_head=params.rollout.head_dtype == "float32" and training.dtype != "float32",
        sharded=processes > 1,
        accumulates=batch.number > 1 or processes > 1,
        looks_ahead=training.mini_batches > 1 or Objective(algorithm, params.rollout.max_new_tokens, None).looks_ahead,
    )
    return Training(
        shape=shape,
        trained=shape.trained(training.lora, training.vision),
        passes=passes,
        processes=processes,
        copies=params.runtime.copies,
        second_model=algorithm.kl.coefficient > 0 and not training.lora.is_on,
        patches=_patches(models, batch, runtime.micro_batch_patches) if training.vision == "trained" else 0,
        reduction=reduction_of(runtime, on_gpu=gpu),
        moments=training.moments_dtype,
        may_compile=_may_compile(runtime, shape),
    )


def of_sft(params: Params, models: Models, *, gpu: bool) -> Training:
    """Return the process of the stage sft. Raises UserError like `of_train`."""
    sft, runtime, shape = params.sft, params.runtime.sft, models.policy
    batch = MicroBatch.of_sft(params, Lengths.of_training(params, shape.positions))
    passes = Passes(
        batch=batch,
        dtype=sft.dtype,
        layout=_layout(runtime, shape, sft.dtype, gpu=gpu),
        on_gpu=gpu,
        rank=sft.lora.rank,
        checkpointed=runtime.activation_checkpointing,
        head_chunk=head_chunk_of(runtime, on_gpu=gpu),
        sharded=runtime.processes > 1,
        accumulates=batch.number > 1 or runtime.processes > 1,
    )
    return Training(
        shape=shape,
        trained=shape.trained(sft.lora, sft.vision),
        passes=passes,
        processes=runtime.processes,
        second_model=False,
        patches=_patches(models, batch, None) if sft.vision == "trained" else 0,
        reduction=reduction_of(runtime, on_gpu=gpu),
        moments=sft.moments_dtype,
        may_compile=_may_compile(runtime, shape),
    )


def _may_compile(runtime: TrainingRuntime | SftRuntime, shape: Shape) -> bool:
    return runtime.compile is not False and not is_mixture_of_experts(shape.text)


def _layout(runtime: TrainingRuntime | SftRuntime, shape: Shape, dtype: Dtype, *, gpu: bool) -> Layout:
    """Return the decision of trainer/model/layout.py, as far as it is known without weights: whether the model takes pictures."""
    share = isinstance(runtime, TrainingRuntime) and bool(runtime.share_prompts)
    usual = usual_layout(narrow=BYTES[dtype] < FLOAT32, on_gpu=gpu, share_prompts=share)
    return "padded" if shape.vision is not None else runtime.layout or usual


def _patches(models: Models, batch: MicroBatch, most: int | None) -> int:
    """Return the patches of a micro-batch's pictures, one per problem; 0 without pictures, or if their size is unknown."""
    if models.policy.vision is None or models.pixels is None:
        return 0
    each = models.pixels // int(models.policy.vision.patch_size) ** 2
    return batch.pictures * each if most is None else min(batch.pictures * each, max(most, each))
