"""Section `checkpoint`: the format that the trainer reads and writes.

Read by convert and export.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from dagrpo.checkpoints.formats import FORMATS, require_format_name
from dagrpo.core.section import Section

if TYPE_CHECKING:
    from dagrpo.config.schema import Params


class Checkpoint(Section):
    format: Annotated[str, AfterValidator(require_format_name)] = Field(
        "dcp",
        description="dcp: torch.distributed.checkpoint; huggingface: nothing is converted; "
        "or one of an installed package, such as megatron.",
    )
    max_shard_bytes: Annotated[int, Field(ge=1 << 20, le=10**13)] = Field(
        1_000_000_000,
        description="Most bytes of weights in one file that convert or export writes; a larger tensor has a separate file.",
    )

    def check(self, params: "Params") -> None:
        """Raise UserError if the format cannot hold the model."""
        if self.format not in FORMATS.own_names():  # dagrpo's own, whose import takes seconds, hold all models
            FORMATS.get(self.format).check(params)
