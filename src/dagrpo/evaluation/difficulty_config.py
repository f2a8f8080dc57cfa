"""Section `difficulty`: pass rate of each train problem under the base policy."""

from typing import Annotated

from pydantic import Field

from dagrpo.core.section import Section, Seed


class Difficulty(Section):
    samples: Annotated[int, Field(ge=0, le=65_536)] = Field(
        0, description="Completions per train problem, graded for its pass rate; 0: no problem is rated."
    )
    seed: Seed = Field(2000, description="Seed of those completions.")
