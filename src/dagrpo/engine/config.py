"""Sections `runtime.engine`, `teacher` and `reward_model`: where and how models are served."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.section import Texts

FOLDER = (
    "DAGRPO_SERVERS"  # environment variable of a training: where the nodes of its servers look for their description
)
PATIENCE = "DAGRPO_NODES_PATIENCE"  # seconds that a training waits for these nodes: runtime.node_timeout
POLICY, TEACHER, REWARD_MODEL = "runtime.engine", "runtime.teacher", "runtime.reward_model"  # keys of their sections


class EngineConfig(Choice):
    """Keys of every engine. The Config of an engine adds its own."""

    servers: Texts = Field(
        [], description="Addresses of servers that run elsewhere; empty: the stage starts its own servers."
    )
    weights_folder: str | None = Field(
        None,
        description="Folder through which weights reach the servers. Servers that run elsewhere need one, under the same path. "
        "null: memory (/dev/shm) if it has room.",
    )
    weight_sync: Literal["folder", "tensors", "distributed"] | None = Field(
        None,
        description="Road of the weights to a server that the stage starts. folder: safetensors files. tensors: memory that trainer and "
        "servers share, on their common GPUs (CUDA IPC) or on the CPU: each GPU of a server belongs to one of "
        "runtime.training.processes. distributed: broadcasts to the servers of `nodes`, by NCCL on GPUs and gloo on CPUs. null: tensors if "
        "the servers share the policy's GPUs and can open their memory, also with release_memory; else folder.",
    )
    max_total_tokens: Annotated[int, Field(ge=1024, le=1 << 30)] | None = Field(
        65_536,
        description="Size of the key-value cache of each server, in tokens. null: what is free on its GPUs when it starts, for servers "
        "that share them with no other process at work (release_memory, own_gpus, nodes), and without rollout.deterministic.",
    )
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="Maximum number of requests that are decoded at the same time."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1,
        description="Threads of a server that the stage starts, on a CPU. More are faster if as many cores are idle, and slower if not; "
        "the same number gives the same bytes.",
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Number of servers with the same weights that the stage starts, on each of `nodes` if there are any; each is on a "
        "separate GPU if there are GPUs. Each computes a part of every batch. A teacher has one server.",
    )
    nodes: Annotated[int, Field(ge=0, le=4096)] = Field(
        0,
        description="Machines beside those of runtime.nodes that serve the policy while it is trained, with `replicas` servers on each; 0: "
        "the first of runtime.nodes serves it. All see the project's folder under the same path. Other stages start their servers on their "
        "machine alone. Only for runtime.engine. See docs/cluster.md.",
    )
    nodes_per_server: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Machines of `nodes` that each server divides every layer over, with `tensor_parallel` GPUs on each, for a model that "
        "is too large for one machine while it is trained. Must divide `nodes`, with 1 for `replicas`. Other stages serve the model on "
        "`tensor_parallel` GPUs of their machine.",
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Number of GPUs that each server divides every layer over, for a model that is too large for one GPU, or to "
        "sample faster. Must divide the attention heads and the width of the MLP, and divide the key-value heads or be a multiple "
        "of them. Rounds differently from one GPU. Not with pictures, nor with training.lora.serving adapter. On a CPU: processes.",
    )
    own_gpus: bool = Field(
        False,
        description="Give these servers separate GPUs while the policy is trained, beside one for each of "
        "runtime.training.processes; false: they share the policy's GPUs. Without a GPU it changes nothing. "
        "Not for a teacher.",
    )
    release_memory: bool = Field(
        False,
        description="Release the GPU memory of the stage's server while the policy is updated: its weights and its key-value cache are "
        "freed, and allocated again with the new weights. Takes about a second of each step. Needs a GPU. Not for a teacher. A reward "
        "model's memory is released whenever it scores nothing; its weights wait in host memory.",
    )
    start_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        300,
        description="Maximum seconds until a started server is ready. Seconds, up to an hour, in which servers of this user compile "
        "kernels do not count.",
    )
    request_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        600,
        description="Maximum seconds in which a server makes no progress: it answers no request and writes no token. How long a request "
        "waits behind others does not count.",
    )

    @model_validator(mode="after")
    def _broadcasts_reach_nodes_of_their_own(self) -> Self:
        if self.weight_sync == "distributed" and not self.nodes:
            raise UserError(
                "weight_sync is distributed, which is for servers on separate nodes: set it to null, or nodes above 0"
            )
        return self

    @model_validator(mode="after")
    def _servers_span_whole_groups_of_nodes(self) -> Self:
        span = self.nodes_per_server
        if span > 1 and (not self.nodes or self.nodes % span or self.replicas > 1):
            raise UserError(
                f"nodes_per_server is {span}, but nodes is {self.nodes} and replicas {self.replicas}: set nodes to a multiple of {span} "
                "and replicas to 1, or nodes_per_server to 1"
            )
        return self

    @model_validator(mode="after")
    def _tensors_reach_servers_beside_the_trainer(self) -> Self:
        if self.weight_sync == "tensors" and (self.servers or self.nodes or self.own_gpus):
            raise UserError(
                "weight_sync is tensors, which only servers on the GPUs of the policy, or on its CPU, can open: set it to null, or leave "
                "servers, nodes and own_gpus at their defaults"
            )
        return self

    @property
    def serves_elsewhere(self) -> bool:
        """Return True if the policy in training is served on other machines than the first."""
        return bool(self.servers) or self.nodes > 0

    @property
    def on_one_machine(self) -> Self:
        """Return these parameters for a stage that starts its servers on its machine alone: all but training."""
        return self.model_copy(update={"nodes": 0, "nodes_per_server": 1})

    @property
    def without_a_gpu(self) -> str | None:
        """Return why a server cannot start on a machine without a GPU, and what to change; None if it can."""
        if self.release_memory:
            return (
                "release_memory is true, but this machine has no GPU whose memory could be given back: set it to false"
            )
        if self.max_total_tokens is None:
            return "max_total_tokens is null, but this machine has no GPU whose free memory could be the cache: set it to 65536"
        return None

    @property
    def ranks(self) -> int:
        """Return the number of processes that a server divides every layer over while the policy is trained."""
        return self.tensor_parallel * self.nodes_per_server

    @property
    def all_threads(self) -> int:
        """Return the threads of the servers that a stage starts on one machine, on a CPU."""
        return 0 if self.servers else self.threads * self.gpus

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the servers that a stage starts on one machine."""
        return self.replicas * self.tensor_parallel
