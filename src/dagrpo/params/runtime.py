"""Section `runtime`: what changes speed, memory or place, and no result.

Part of no stage's identity, of no resumable state's and of nothing that DVC compares; recorded with each execution. A
changed batch size may still round the last bits of a matrix product differently.
"""

from typing import Annotated

from pydantic import Field, field_validator

from dagrpo.addresses import SERVER_SCHEMES, parts_of
from dagrpo.errors import UserError
from dagrpo.params.base import LARGEST_BATCH, MOST_PROCESSES, MOST_STEPS, Section, Texts


class Engine(Section):
    servers: Texts = Field(
        [],
        description="Addresses of SGLang servers that run elsewhere; empty: the stage starts its own. One of a model that takes "
        "pictures has to be started with --image-processor-backend pil, and in an environment with SGLANG_VLM_CACHE_SIZE_MB=0.",
    )
    weights_folder: str | None = Field(
        None,
        description="Folder for weights on their way to the engine, under the same path for servers that run elsewhere, which "
        "need one; null: memory (/dev/shm) where it has room.",
    )
    max_total_tokens: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        65_536, description="Size of the key-value cache, in tokens."
    )
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] = Field(
        256, description="Requests decoded at the same time."
    )
    start_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        300, description="Seconds until a server that is not ready is an error."
    )
    request_timeout: Annotated[int, Field(ge=1, le=604_800)] = Field(
        600, description="Seconds until a batch without an answer is an error."
    )

    @field_validator("servers")
    @classmethod
    def _are_addresses(cls, servers: list[str]) -> list[str]:
        """What is refused is not quoted: it may hold a password."""
        for number, address in enumerate(servers, start=1):
            if wrong := _wrong_with(address):
                raise UserError(
                    f"address {number} of runtime.engine.servers {wrong}: write it as http://127.0.0.1:30000, with a port "
                    "below 65536, and give a key in the environment variable SGLANG_API_KEY"
                )
        return servers


def _wrong_with(address: str) -> str | None:
    parts = parts_of(address)
    if parts is None or parts.scheme not in SERVER_SCHEMES or not parts.hostname:
        return "is not one"
    if "@" in parts.netloc:
        return "has a user or a password, which would be recorded"
    return "has more than a host, a port and a path" if parts.query or parts.fragment else None


class SftRuntime(Section):
    micro_batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        256, description="Examples per forward pass of a process: lower it when the memory of the device runs out."
    )
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        1, description="Processes that share the model (FSDP), one per GPU; divides sft.batch_size."
    )
    save_every: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(500, description="Steps between resumable states.")


class TrainingRuntime(Section):
    micro_batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = Field(
        256,
        description="Token sequences per forward pass of a process: lower it when the memory of the device runs out.",
    )
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = Field(
        1,
        description="Processes that share the policy (FSDP), one per GPU; divides the completions of a mini-batch.",
    )
    save_every: Annotated[int, Field(ge=1, le=MOST_STEPS)] = Field(20, description="Steps between resumable states.")
    keep_states: Annotated[int, Field(ge=0, le=1000)] = Field(
        1,
        description="Resumable states to keep of a finished run, newest first: with 1, more training.steps go on from its end; 0: none.",
    )


class Runtime(Section):
    reuse: bool = Field(
        True,
        description="Take over what another experiment here has made of the same inputs, parameters and code; false: make it again.",
    )
    grace_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        20.0,
        description="What training, told to stop (SIGTERM, Ctrl-C), may take to finish its update and save a state: less than "
        "its scheduler waits (SLURM's KillWait, Kubernetes: 30).",
    )
    traces: Annotated[int, Field(ge=0, le=10_000)] = Field(
        4,
        description="Attempts of the last step of training, and of each evaluation, that MLflow gets as traces; "
        "of single turns without calls at most 2.",
    )
    engine: Engine = Field(Engine(), description="The SGLang engine of every stage that samples.")
    teacher: Engine = Field(
        Engine(), description="The SGLang engine of algorithm.teacher, where there is one: not that of the policy."
    )
    sft: SftRuntime = Field(SftRuntime(), description="How supervised fine-tuning is computed.")
    training: TrainingRuntime = Field(TrainingRuntime(), description="How the policy update is computed.")
