"""TRL's and verl's corrections, off-policy mask and aggregations give each token the weight that it has here.

No function of theirs: the aggregation prompt-mean. verl takes rejected tokens out of the means of its aggregation, too; here
they count there, so that the weights alone are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.oracles.asking import answers, require
from tests.oracles.batches import LONGEST, Kind, batch_of, token_batch

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights
from dagrpo.algorithms.corrections import CORRECTIONS, off_policy_mask, weights_of
from dagrpo.algorithms.tokens import TokenBatch

SEEDS = 3
KIND = Kind(sizes=(4, 4, 4))  # TRL knows no others
UNCOUNTED = 1  # a sequence that has no part in the loss
THRESHOLD = 0.03
EXACT = 1e-12
SHARES = 1e-6  # weights of tokens are of single precision here, and verl adds 1e-8 to lengths
NO_LIMIT = 1e8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What weighs tokens here, and what does elsewhere."""

    name: str
    ours: Callable[[TokenBatch], torch.Tensor]  # -> [tokens]
    library: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    near: float = EXACT

    def __str__(self) -> str:
        return f"{self.name}-{self.library}-{self.function}"


def _correction(name: str, library: str, function: str, keys: dict[str, float], **options: Any) -> Case:
    config = CORRECTIONS.get(name).config.model_validate({"name": name, **keys})
    return Case(
        name=name,
        ours=lambda batch: weights_of(batch, config).per_token,
        library=f"{library}_correction",
        function=function,
        options=options,
    )


def _aggregation(aggregation: Aggregation, mode: str) -> Case:
    return Case(
        name=aggregation,
        ours=lambda batch: _shares(batch, aggregation),
        library="verl_aggregation",
        function=mode,
        options={"uncounted": UNCOUNTED, "loss_scale_factor": LONGEST},
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
        ours=lambda batch: off_policy_mask(batch, THRESHOLD).double(),
        library="trl_off_policy_mask",
        function="get_off_policy_mask",
        options={"threshold": THRESHOLD},
    ),
    _aggregation("token-mean", "token-mean"),
    _aggregation("seq-mean-token-mean", "seq-mean-token-mean"),
    _aggregation("seq-mean-token-sum", "seq-mean-token-sum"),
    _aggregation("constant", "seq-mean-token-sum-norm"),
]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    """What the libraries compute. [cases x seeds]"""
    cases = [
        {"library": case.library, "function": case.function, "options": case.options, "batch": str(seed)}
        for case in CASES
        for seed in range(SEEDS)
    ]
    batches = {str(seed): {name: rows.tolist() for name, rows in batch_of(KIND, seed).items()} for seed in range(SEEDS)}
    return answers("estimators.py", {"batches": batches, "cases": cases})


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("place", "case"), enumerate(CASES), ids=[f"{place}-{case}" for place, case in enumerate(CASES)]
)
def test_a_token_weighs_what_it_does_in_the_library(
    place: int,
    case: Case,
    seed: int,
    theirs: list[dict[str, Any]],
    record_property: Callable[[str, object], None],
) -> None:
    answer = theirs[place * SEEDS + seed]
    require(case.library.partition("_")[0], answer)
    batch = batch_of(KIND, seed)
    ours = case.ours(token_batch(batch))
    expected = torch.tensor(answer["values"], dtype=torch.float64)[batch["mask"].bool()]
    record_property("largest_difference", float((ours - expected).abs().max()))
    torch.testing.assert_close(ours, expected, rtol=case.near, atol=case.near)
    assert ours.any(), "weights of 0 compare nothing"
