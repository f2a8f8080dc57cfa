"""TRL's and verl's corrections, off-policy mask and aggregations give each token the weight that it has here.

No function of theirs: the aggregation prompt-mean. verl takes rejected tokens out of the means of its aggregation, too; here
they count there, so that the weights alone are compared.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.oracles.asking import SEEDS, Case, estimates, require_equal
from tests.oracles.batches import LONGEST, Kind, token_batch

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights
from dagrpo.algorithms.corrections import CORRECTIONS, off_policy_mask, weights_of
from dagrpo.algorithms.tokens import TokenBatch

KIND = Kind(sizes=(4, 4, 4))  # TRL knows no others
UNCOUNTED = 1  # a sequence that has no part in the loss
THRESHOLD = 0.03
SHARES = 1e-6  # weights of tokens are of single precision here, and verl adds 1e-8 to lengths
NO_LIMIT = 1e8


def _correction(name: str, library: str, function: str, keys: dict[str, float], **options: Any) -> Case:
    config = CORRECTIONS.get(name).config.model_validate({"name": name, **keys})
    return Case(
        name=name,
        ours=lambda batch: weights_of(token_batch(batch), config).per_token,
        library=f"{library}_correction",
        function=function,
        options=options,
        kind=KIND,
    )


def _aggregation(aggregation: Aggregation, mode: str) -> Case:
    return Case(
        name=aggregation,
        ours=lambda batch: _shares(token_batch(batch), aggregation),
        library="verl_aggregation",
        function=mode,
        options={"uncounted": UNCOUNTED, "loss_scale_factor": LONGEST},
        kind=KIND,
        near=SHARES,
    )


def _shares(batch: TokenBatch, aggregation: Aggregation) -> torch.Tensor:
    """What each token weighs in a mini-batch of two micro-batches. [tokens]"""
    lengths = batch.sequence.bincount().tolist()
    lengths[UNCOUNTED] = 0
    of_all = Lengths(tokens=lengths, prompts=list(range(len(lengths))))
    half = len(lengths) // 2
    shares = []
    for first, sequence in (0, batch.sequence[batch.sequence < half]), (half, batch.sequence[batch.sequence >= half]):
        of_tokens, denominator = weights(aggregation, sequence - first, first, of_all, max_new_tokens=LONGEST)
        shares.append(of_tokens / denominator)
    return torch.cat(shares).double()


def _turned(minimum: float, maximum: float) -> str:
    """The bounds of verl's k1, which is the engine's logprob less the trainer's."""
    return f"{1 / maximum}_{1 / minimum}"


TOKEN, SEQUENCE, MEAN = {"minimum": 0.8, "maximum": 1.1}, {"minimum": 0.7, "maximum": 1.2}, (0.95, 1.04)
CASES = [
    _correction("token_truncated", "verl", "token", {"maximum": 1.1}, threshold=1.1),
    _correction("token_truncated", "trl", "token_truncate", {"maximum": 1.1}, vllm_importance_sampling_clip_max=1.1),
    _correction("token_masked", "verl", "token", TOKEN, threshold="0.8_1.1"),
    _correction(
        "token_masked",
        "verl",
        "token",
        TOKEN,
        threshold=NO_LIMIT,
        rollout_rs="token_k1",
        rollout_rs_threshold=_turned(**TOKEN),
    ),
    _correction(
        "token_masked",
        "trl",
        "token_mask",
        TOKEN,
        vllm_importance_sampling_clip_min=0.8,
        vllm_importance_sampling_clip_max=1.1,
    ),
    _correction("sequence_truncated", "verl", "sequence", {"maximum": 1.2}, threshold=1.2),
    _correction(
        "sequence_truncated", "trl", "sequence_truncate", {"maximum": 1.2}, vllm_importance_sampling_clip_max=1.2
    ),
    _correction("sequence_masked", "verl", "sequence", SEQUENCE, threshold="0.7_1.2"),
    _correction(
        "sequence_masked",
        "verl",
        "sequence",
        SEQUENCE,
        threshold=NO_LIMIT,
        rollout_rs="seq_sum_k1",
        rollout_rs_threshold=_turned(**SEQUENCE),
    ),
    _correction(
        "sequence_masked",
        "trl",
        "sequence_mask",
        SEQUENCE,
        vllm_importance_sampling_clip_min=0.7,
        vllm_importance_sampling_clip_max=1.2,
    ),
    _correction(
        "geometric_masked",
        "verl",
        "token",
        {"minimum": MEAN[0], "maximum": MEAN[1]},
        threshold=NO_LIMIT,
        rollout_rs="seq_mean_k1",
        rollout_rs_threshold=_turned(*MEAN),
    ),
    Case(
        name="off_policy_mask",
        ours=lambda batch: off_policy_mask(token_batch(batch), THRESHOLD).double(),
        library="trl_off_policy_mask",
        function="get_off_policy_mask",
        options={"threshold": THRESHOLD},
        kind=KIND,
    ),
    _aggregation("token-mean", "token-mean"),
    _aggregation("seq-mean-token-mean", "seq-mean-token-mean"),
    _aggregation("seq-mean-token-sum", "seq-mean-token-sum"),
    _aggregation("constant", "seq-mean-token-sum-norm"),
]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    return estimates(CASES)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("place", range(len(CASES)), ids=[f"{place}-{case}" for place, case in enumerate(CASES)])
def test_a_token_weighs_what_it_does_in_the_library(
    place: int, seed: int, theirs: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    require_equal(CASES[place], seed, theirs[place * SEEDS + seed], record_property)
