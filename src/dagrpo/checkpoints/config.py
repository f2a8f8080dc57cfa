"""Section `checkpoint`: the format that the trainer reads and writes.

Read by convert and export.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from dagrpo.checkpoints.formats import require_format_name
from dagrpo.core.section import Section


class Checkpoint(Section):
    format: Annotated[str, AfterValidator(require_format_name)] = Field(
        "dcp",
        description="dcp: torch.distributed.checkpoint; huggingface: no conversion; or a format of an "
        "installed package, such as megatron.",
    )
    max_shard_bytes: Annotated[int, Field(ge=1 << 20, le=10**13)] = Field(
        1_000_000_000,
        description="Most bytes of weights in one file that convert or export writes; a larger tensor gets a separate file.",
    )
