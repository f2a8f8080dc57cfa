"""Rotary positions that depend on the longest sequence of a batch are not computed beyond where they begin to."""

from typing import Any

import pytest
import torch
from tests.trainer.in_double import SIZES
from transformers import Phi3Config, Phi3ForCausalLM, Qwen2Config

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import MicroBatch, TokenSequences
from dagrpo.trainer.model.policy import Policy, longest_of_one_rope, token_logprobs

CPU = torch.device("cpu")
LIMIT = 16
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def _phi3() -> Any:
    longrope = LONGROPE | {"original_max_position_embeddings": LIMIT}
    return Phi3Config(**SIZES, rope_parameters=longrope, original_max_position_embeddings=LIMIT)


def test_the_limit_is_that_of_the_configuration() -> None:
    assert longest_of_one_rope(_phi3()) == LIMIT
    assert longest_of_one_rope(Qwen2Config(**SIZES | {"max_position_embeddings": 24}, rope_parameters=DYNAMIC)) == 24
    assert longest_of_one_rope(Qwen2Config(**SIZES)) is None


@pytest.mark.parametrize("layout", ["padded", "packed", "packed with shared prompts"])
def test_a_longer_sequence_is_refused_in_any_layout(layout: str) -> None:
    policy = Policy(Phi3ForCausalLM(_phi3()).eval())
    policy.take_packed()
    fits, share = _batch(LIMIT - 9, layout), _batch(LIMIT - 8, layout)
    assert len(token_logprobs(policy, fits, 1.0).logprobs)
    with pytest.raises(UserError, match=f"A sequence has 17 tokens, and beyond {LIMIT} the rotary positions of this"):
        token_logprobs(policy, share, 1.0)


def _batch(written: int, layout: str) -> MicroBatch:
    """Two samples of a prompt of nine tokens."""
    ids = [[*range(1, 10), *[sample] * written] for sample in (3, 4)]
    sequences = TokenSequences.of(ids, [[False] * 9 + [True] * written] * 2)
    if layout == "padded":
        return sequences.padded(range(2), 0, CPU)
    return sequences.packed(range(2), CPU, share_prompts=layout.endswith("shared prompts"))
