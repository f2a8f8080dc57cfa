"""Section `runtime`: speed, memory and place; results only to rounding.

Apart from the names of the engines and `portable_arithmetic`, it is part of no stage's identity, of no resumable state and of nothing
that DVC compares; it is recorded with each execution. Batch sizes, numbers of threads or processes, layouts and compilation may change the
last bits.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Chosen
from dagrpo.core.section import LARGEST_BATCH, MOST_PROCESSES, MOST_STEPS, Section
from dagrpo.engine import DEFAULT, ENGINES
from dagrpo.engine.config import EngineConfig
from dagrpo.rollout.config import KeepRollouts
from dagrpo.trainer.config.engines import check_engines

if TYPE_CHECKING:
    from dagrpo.algorithms.config import Algorithm
    from dagrpo.models.config import Model
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout
    from dagrpo.trainer.config.training import Training

MOST_NODES = 4096
ADDRESS = r"^[A-Za-z0-9][A-Za-z0-9.\-]*(:[0-9]{1,5})?$"
MOST_BATCH_TOKENS = 1 << 30
LEAST_THREADS = 2  # of a stage that trains on a CPU, all processes together, where none are asked for
_DEFAULT_ENGINE: Any = {}

HeadChunk = Annotated[int, Field(ge=1, le=MOST_BATCH_TOKENS)] | None
CHECKPOINTING = (
    "Keep what enters each layer alone, and compute the layer again in the backward pass: less memory, a forward pass more; changes no "
    "bit on a CPU."
)
HEAD_CHUNK = (
    "Most trained tokens of a forward pass whose logits are in memory at a time: the backward pass computes those of each chunk "
    "again; null: 8,192 on a GPU, if the model's head is a linear layer; else all at once, as with a number that no pass exceeds."
)

Layout = Literal["padded", "packed"]
LAYOUT = (
    "Layout of the sequences in a forward pass. padded: one row each, filled up to the longest. packed: all in one row, without "
    "padding. null: packed on a CPU, and on a GPU in 16 bits, if the model supports it; else padded."
)
Reduction = Literal["each_mini_batch", "each_micro_batch"]
REDUCTION = (
    "When processes add up their gradients: once for each update, for which each of them keeps a whole gradient in float32; or after "
    "each forward and backward pass, which sends as much each time and keeps only a share. The two round sums otherwise. null: "
    "each_micro_batch on GPUs, each_mini_batch on a CPU."
)
COMPILE = (
    "Have torch compile the layers of the language model: fewer kernels, other last bits, and some minutes before the first update. Not "
    "with experts, nor packed rows on a CPU. null: true on a GPU where rollout.deterministic is false and "
    "the model allows it."
)


class SftRuntime(Section):
    micro_batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        256, description="Examples per forward pass of a process: lower it when the memory of the device runs out."
    )
    layout: Layout | None = Field(None, description=LAYOUT)
    head_chunk_tokens: HeadChunk = Field(None, description=HEAD_CHUNK)
    activation_checkpointing: bool = Field(False, description=CHECKPOINTING)
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        1, description="Processes that share the model (FSDP), one per GPU; divides sft.batch_size."
    )
    reduce_gradients: Reduction | None = Field(None, description=REDUCTION)
    compile: bool | None = Field(None, description=COMPILE)
    save_every: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(500, description="Steps between resumable states.")

    @property
    def all_threads(self) -> int:
        """Return the threads of all processes together, on a CPU."""
        return max(LEAST_THREADS, self.processes)


class TrainingRuntime(Section):
    micro_batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        256,
        description="Most token sequences per forward pass of a process: lower it when the memory of the device runs out.",
    )
    micro_batch_tokens: Annotated[int, Field(ge=1, le=MOST_BATCH_TOKENS)] | None = Field(
        None,
        description="Most tokens of such a pass, prompts, completions and padding, if any; a longer sequence has a separate pass; null: "
        "any number.",
    )
    micro_batch_patches: Annotated[int, Field(ge=1, le=MOST_BATCH_TOKENS)] | None = Field(
        None,
        description="Most patches of pictures of such a pass, where the vision tower is trained; null: any number.",
    )
    layout: Layout | None = Field(None, description=LAYOUT)
    head_chunk_tokens: HeadChunk = Field(None, description=HEAD_CHUNK)
    activation_checkpointing: bool = Field(False, description=CHECKPOINTING)
    share_prompts: bool | None = Field(
        None,
        description="Compute the prompt that the samples of a group have together once per pass, and not once per sample: the same "
        "loss for less work; the longer the prompts, the more it saves. Only in packed rows. null: true for those on a CPU, else false.",
    )
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        1,
        description="Processes that share the policy (FSDP), one per GPU, on each of runtime.nodes; those of all nodes together divide the "
        "completions of a mini-batch.",
    )
    shard_within: Literal["all", "node"] = Field(
        "all",
        description="Processes that share one copy of the policy, of several nodes: all of them; or those of each node (HSDP), which takes "
        "the memory of a copy on each node, and sends nothing but gradients between nodes.",
    )
    reduce_gradients: Reduction | None = Field(None, description=REDUCTION)
    compile: bool | None = Field(None, description=COMPILE)
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="Threads that each of these processes computes with on a CPU, and cores that it asks its scheduler for; null: two for "
        "all together, and at least one for each. How sums are rounded depends on it. With training.staleness on two cores, 1 leaves "
        "a core to the engine.",
    )
    require_room: bool = Field(
        True,
        description="On a GPU, refuse before anything is trained what `dagrpo plan` says does not fit, with what to change; false: try it. "
        "Holds for supervised fine-tuning, too.",
    )
    save_every: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(
        20, description="Steps between resumable states, which are written while the next step is sampled."
    )
    save_every_minutes: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        None,
        description="Save a state also at the end of the first step this many minutes after the last one; null: by steps alone. To save "
        "by time alone, set save_every above training.steps.",
    )
    keep_states: Annotated[int, Field(ge=0, le=1000)] = Field(
        1,
        description="Resumable states to keep of a finished run, newest first: with 1, more training.steps resume from its end; 0: none.",
    )

    def threads_of_node(self, nodes: int) -> int:
        """Return the threads of the processes on one node, on a CPU: each process has as many as if all were on one node."""
        each = max(1, LEAST_THREADS // (self.processes * nodes)) if self.threads is None else self.threads
        return self.processes * each

    @model_validator(mode="after")
    def _prompts_are_shared_in_packed_rows(self) -> Self:
        if self.share_prompts and self.layout == "padded":
            raise UserError(
                "runtime.training.share_prompts is true and layout padded, and prompts are shared only in packed rows: set layout to "
                "packed or null, or share_prompts to false"
            )
        return self


class BackendRuntime(Section):
    python: str | None = Field(
        None,
        description="Python of the environment in which the program of training.backend is installed, where that is not ours; such as "
        ".venv-verl/bin/python. null: this one.",
    )
    source: str | None = Field(
        None, description="Folder of the checkout that training.backend megatron_lm runs; such as Megatron-LM."
    )
    silent_minutes: Annotated[float, Field(gt=0, le=10_000)] = Field(
        60.0,
        description="Longest time without a new step of such a program, its start included, after which it is taken for stuck, stopped, "
        "and started again from its last checkpoint.",
    )


class Runtime(Section):
    reuse: bool = Field(
        True,
        description="Keep outputs that were made from the same inputs with the same parameters and code, and share those elsewhere "
        "(a cache hit); false: make them again.",
    )
    portable_arithmetic: bool = Field(
        True,
        description="Compute on a CPU so that every x86-64 processor with AVX2 gives the same bytes in float32, whatever its vendor and "
        "its further instructions. Changes the last bits. Without effect on other processors and on what a GPU computes.",
    )
    grace_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        20.0,
        description="Maximum seconds in which training, after SIGTERM or Ctrl-C, finishes its update and saves a state: less than "
        "its scheduler waits (SLURM's KillWait, Kubernetes: 30).",
    )
    traces: Annotated[int, Field(ge=0, le=100)] = Field(
        4,
        description="Attempts that MLflow gets as traces, from the best to the worst: of each evaluation, and of each of five steps of "
        "training, from the first to the last.",
    )
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = Field(
        1,
        description="Machines that train together, with runtime.training.processes on each; the first one samples and writes the files, on "
        "a file system that all share. Supervised fine-tuning stays on the first. See docs/cluster.md.",
    )
    address: Annotated[str, Field(max_length=255, pattern=ADDRESS)] | None = Field(
        None,
        description="Address of the first of several nodes, by which the others find it, and whose network all use among each other; such "
        "as 10.0.0.1, or 10.0.0.1:29500 for a fixed port. Everyone in that network can reach it. null: in SLURM, the one by which the "
        "first node reaches the second.",
    )
    node_timeout: Annotated[float, Field(ge=5, le=604_800)] = Field(
        300.0,
        description="Maximum seconds until all nodes have joined a training.",
    )
    cores_per_gpu: Annotated[int, Field(ge=1, le=256)] = Field(
        4,
        description="Least cores that a job of SLURM asks for with each of its GPUs: for a process of the trainer, those of a server, and "
        "grading.",
    )
    job_minutes: Annotated[int, Field(ge=10, le=10_080)] = Field(
        10_080,
        description="Longest time that a job of SLURM asks for, in minutes: the limit of its partition. Stages of a group share it. "
        "Training and supervised fine-tuning that take longer resume in the next job (Snakemake's retries).",
    )
    keep_rollouts: KeepRollouts = Field(
        "all",
        description="Contents of the tables of training's rollouts beside rewards, verdicts and lengths, which they always have. all: "
        "texts, tokens and logprobs, 7 bytes a token, from which `dagrpo replay` computes a step again; rounded: the same of 3% precision "
        "in logprobs, 4 bytes; a number n: all of the first step and of each n-th; best_and_worst: all of the best and the "
        "worst trajectory of each prompt; none: nothing else. A cache hit brings what the other run kept.",
    )
    engine: Annotated[EngineConfig, Chosen(ENGINES, DEFAULT)] = Field(
        _DEFAULT_ENGINE, description="Engine of every stage that samples."
    )
    teacher: Annotated[EngineConfig, Chosen(ENGINES, DEFAULT)] = Field(
        _DEFAULT_ENGINE, description="Engine of algorithm.teacher, if there is one; separate from the policy's."
    )
    reward_model: Annotated[EngineConfig, Chosen(ENGINES, DEFAULT)] = Field(
        _DEFAULT_ENGINE,
        description="Engine of reward.components.reward_model, if there is one; its servers elsewhere serve that model already.",
    )
    sft: SftRuntime = Field(SftRuntime(), description="How supervised fine-tuning is computed.")
    backend: BackendRuntime = Field(BackendRuntime(), description="Where another trainer than our own runs.")
    training: TrainingRuntime = Field(TrainingRuntime(), description="How the policy update is computed.")

    @property
    def lends_gpus(self) -> bool:
        """Return True if servers that leave the trainer's GPUs for an update take what is free of them from its weight sync on."""
        return self.engine.release_memory or self.reward_model.release_memory

    @property
    def copies(self) -> int:
        """Return the number of copies of the policy in training: one for all processes, or one on each node."""
        return self.nodes if self.training.shard_within == "node" else 1

    def check(
        self,
        model: "Model",
        rollout: "Rollout",
        reward: "Reward",
        algorithm: "Algorithm",
        training: "Training",
    ) -> None:
        """Raise UserError if an engine cannot work with the other sections."""
        check_engines(self, model=model, rollout=rollout, reward=reward, algorithm=algorithm, training=training)
