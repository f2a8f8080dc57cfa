"""Base of the sections of generated tasks."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dagrpo.core.section import Section

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

Count = Annotated[int, Field(ge=1, le=100_000_000)]  # of problems


class GeneratedTask(Section):
    """Section `data.<module>` of a task whose problems are generated."""

    def check(self, params: "Params") -> None:
        """Raise UserError if the other parameters do not fit. Called when params.yaml is read."""
