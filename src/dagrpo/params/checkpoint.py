"""Section `checkpoint`: the trainer's sharded format. Read by convert, train and export."""

from typing import Annotated, Literal

from pydantic import Field

from dagrpo.params.base import Section


class Checkpoint(Section):
    format: Literal["dcp"] = Field("dcp", description="dcp: torch.distributed.checkpoint.")
    max_shard_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        1_000_000_000, description="Most bytes of weights in one safetensors file that export writes."
    )
