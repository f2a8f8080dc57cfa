"""Sections `evaluation` (stages sample and score) and `difficulty`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import EXTRACTION, MOST_TOKENS, Extractor, Seconds, Section, Seed, Temperature, TopK, TopP


class Sampling(Section):
    seed: Seed = Field(1000, description="Seed of the sampled completions, joined with the run's seed.")
    samples: Annotated[int, Field(ge=0, le=65_536)] = Field(
        4, description="Sampled completions per problem, besides the greedy one."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature.")
    top_p: TopP = Field(1.0, description="Nucleus sampling.")
    top_k: TopK = Field(-1, description="Sample from the k likeliest tokens; -1: from all.")
    max_new_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        20, description="Longest completion, in tokens; a longer one counts as truncated."
    )
    max_problems: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Evaluate only the first problems of each task; null: all."
    )
    without_pictures: bool = Field(
        True,
        description="Of a task with pictures, have each problem also answered greedily without them: what the text alone gives.",
    )

    @model_validator(mode="after")
    def _top_k_is_a_number_of_tokens(self) -> Self:
        if self.top_k == 0:
            raise UserError("evaluation.sampling.top_k is 0: give -1 to sample from all tokens, or a positive number")
        return self


class Scoring(Section):
    extractor: Extractor = Field(
        "strict", description=f"How the answer is read; changing it rescores, and samples nothing again. {EXTRACTION}"
    )
    verify_seconds: Seconds = Field(2.0, description="Longest time math-verify may take for one answer.")
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(0.95, description="Level of the intervals.")
    bootstrap_draws: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        2000, description="Resamples over problems behind each bootstrap interval."
    )
    bootstrap_seed: Seed = Field(0, description="Seed of those resamples.")


class Evaluation(Section):
    oracles: bool = Field(
        False,
        description="Evaluate also tasks whose tool or user knows the answer; each of their scores is then marked (oracle).",
    )
    sampling: Sampling = Field(Sampling(), description="What is generated (stage sample).")
    scoring: Scoring = Field(Scoring(), description="How it is graded (stage score).")


class Difficulty(Section):
    samples: Annotated[int, Field(ge=0, le=65_536)] = Field(
        0, description="Completions per train problem, graded for its pass rate; 0: no problem is rated."
    )
    seed: Seed = Field(2000, description="Seed of those completions.")
