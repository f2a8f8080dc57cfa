"""Section `checkpoint`: the trainer's sharded format. Read by convert, train and export."""

from typing import Annotated, Literal

from pydantic import Field

from dagrpo.params.base import Section


class Checkpoint(Section):
    format: Literal["dcp", "megatron"] = Field(
        "dcp",
        description="dcp: torch.distributed.checkpoint; megatron: torch_dist of Megatron-LM, for any TP, PP and EP.",
    )
    max_shard_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        1_000_000_000,
        description="Most bytes of weights in one file that convert or export writes; a larger tensor has one of its own.",
    )
