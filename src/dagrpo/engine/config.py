"""Sections `runtime.engine` and `runtime.teacher`: where and how completions are sampled."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Section, Texts
from dagrpo.core.urls import SERVER_SCHEMES, parts_of


class EngineConfig(Section):
    servers: Texts = Field(
        [],
        description="Addresses of SGLang servers that run elsewhere; empty: the stage starts its own. One of a model that takes "
        "pictures has to be started with --image-processor-backend=pil, and in an environment with SGLANG_VLM_CACHE_SIZE_MB=0; "
        "--mm-preprocess-cache-size-mb=1024 has it prepare each picture once.",
    )
    weights_folder: str | None = Field(
        None,
        description="Folder for weights on their way to the engine, under the same path for servers that run elsewhere, which "
        "need one; null: memory (/dev/shm) where it has room.",
    )
    weight_sync: Literal["folder", "tensors"] | None = Field(
        None,
        description="How weights reach a server that the stage starts. folder: as safetensors. tensors: through memory that trainer and "
        "server share, on the GPU that they share (CUDA IPC) or on the CPU. null: tensors where one server shares the GPU of the policy "
        "and can open its memory, also with release_memory; else folder.",
    )
    max_total_tokens: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        65_536, description="Size of the key-value cache, in tokens."
    )
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="Requests decoded at the same time."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1,
        description="Threads with which a server that the stage starts computes, on a CPU. More are faster where that many cores are "
        "idle, and slower where they are not; the same number gives the same bytes.",
    )
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Servers with the same weights that a stage starts, each on a GPU of its own where there are any. Each samples its "
        "part of a batch. Only of runtime.engine: a teacher has one server.",
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="GPUs that each server divides every layer over (SGLang's --tp-size), for a model that is too large for one, or to "
        "sample faster. Has to divide the attention heads and the width of the MLP, and to divide the key-value heads or be a multiple "
        "of them. Rounds otherwise than one GPU. Not with pictures, nor with training.lora.serving adapter. On a CPU: processes.",
    )
    own_gpus: bool = Field(
        False,
        description="While the policy is trained, these servers have GPUs to themselves, beside one for each of "
        "runtime.training.processes; false: they share the policy's. Changes nothing where there is no GPU. "
        "Only of runtime.engine.",
    )
    release_memory: bool = Field(
        False,
        description="The server that a stage starts leaves the GPU while the policy is updated: its weights and its key-value cache make "
        "room, and come back with the new weights. Takes a second or so of each step. Needs a GPU.",
    )
    start_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        300,
        description="Seconds until a server that is not ready is an error, without those, up to an hour, in which servers of this user "
        "compile kernels.",
    )
    request_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        600, description="Seconds until a batch without an answer is an error."
    )

    @model_validator(mode="after")
    def _tensors_reach_a_server_of_our_own_alone(self) -> Self:
        if self.weight_sync == "tensors" and (self.servers or self.own_gpus or self.gpus > 1):
            raise UserError(
                "weight_sync is tensors, which only one server on the GPU of the policy, or on its CPU, can open: set it to null, or "
                "leave servers, own_gpus, replicas and tensor_parallel at their defaults"
            )
        return self

    @property
    def gpus(self) -> int:
        """Return the GPUs of the servers that a stage starts."""
        return self.replicas * self.tensor_parallel


def wrong_with(address: str) -> str | None:
    """Return why a server's address cannot be used, without quoting it; None: it can."""
    parts = parts_of(address)
    if parts is None or parts.scheme not in SERVER_SCHEMES or not parts.hostname:
        return "is not one"
    if "@" in parts.netloc:
        return "has a user or a password, which would be recorded"
    return "has more than a host, a port and a path" if parts.query or parts.fragment else None
