"""Sampling parameters, seeds, and the requests to the engine."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.core.trajectory import GREEDY
from dagrpo.core.types import PromptPictures, SamplingRequest
from dagrpo.engine.config import EngineConfig
from dagrpo.utils.files import read_object

SEEDS = 1 << 31  # SGLang takes seeds from 0 to 2**31 - 1


def sampling_seed(seed: int, *parts: int | str) -> int:
    """Return the seed of one completion: sha256 over the run's seed and the parts that name it, such as step, prompt, sample.

    Different parts give independent seeds, whatever the order of the requests. 0 <= result < 2**31.
    """
    text = json.dumps([seed, *parts], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % SEEDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters: number of attempts per prompt, and how each is sampled."""

    section: str = "rollout"  # of params.yaml, where the values stand: for messages
    samples: int  # attempts per problem, besides the greedy one
    greedy: bool = False  # one more attempt, before the others, at temperature 0
    temperature: float  # of the others
    top_p: float
    top_k: int  # -1: all tokens
    max_new_tokens: int  # of one completion
    lockstep: bool
    support: bool = False  # whether it is recorded which tokens top_p and top_k leave, as the trainer needs
    # Attempts in a lockstep batch, or in flight; None: all. In lockstep it can change the last bits of a logprob.
    batch_size: int | None = None

    @property
    def sample_indices(self) -> range:
        """Return the sample indices of one prompt, in order."""
        return range(GREEDY if self.greedy else 0, self.samples)

    def request(
        self,
        token_ids: tuple[int, ...],
        sample_index: int,
        seed: int,
        most: int,
        pictures: PromptPictures | None = None,
    ) -> SamplingRequest:
        """Return the engine's request: a continuation of `token_ids`, with these pictures, by at most `most` tokens."""
        greedy = sample_index == GREEDY
        return SamplingRequest(
            input_ids=token_ids,
            seed=seed,
            temperature=0.0 if greedy else self.temperature,
            top_p=1.0 if greedy else self.top_p,
            top_k=-1 if greedy else self.top_k,
            max_new_tokens=min(most, self.max_new_tokens),
            support=self.support and not greedy,
            pictures=pictures,
        )


def context_tokens(model: Path, engine: EngineConfig) -> int:
    """Return the tokens that both the checkpoint in this folder and the engine's cache can hold."""
    config: dict[str, Any] = read_object(model / "config.json")
    longest = int(config.get("text_config", config).get("max_position_embeddings", 1 << 30))
    return min(longest, engine.max_total_tokens or longest)
