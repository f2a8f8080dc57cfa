"""Length-unbiased sequence policy optimisation (Liu et al. 2026, arXiv 2602.05261): GSPO times the length."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dagrpo.algorithms.losses import Loss, gspo


class Config(gspo.Config):
    """LUSPO: as GSPO, but a long sequence counts for more than a short one."""

    clip_low: Annotated[float, Field(gt=0, le=1000)] = Field(
        2e-3, description="The ratio is clipped below at 1 - clip_low."
    )
    clip_high: Annotated[float, Field(gt=0, le=1000)] = Field(
        2.5e-3, description="The ratio is clipped above at 1 + clip_high."
    )


# The length is the number of tokens that the sum adds up: each has the loss of its sequence.
LOSS = Loss(
    config=Config,
    function=gspo.gspo,
    aggregation="seq-mean-token-sum",
    same_with={"seq-mean-token-mean": "gspo"},
)
