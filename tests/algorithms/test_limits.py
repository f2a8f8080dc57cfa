"""Losses, terms, corrections, divergences and advantages at the ends of their range, in float32 and bfloat16.

Logprobs run from 0, where a probability is 1, to -10,000, where it is 0 in any type; ratios from e^-20 to e^20 and beyond.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from tests.algorithms.batches import everything

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of
from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights
from dagrpo.algorithms.corrections import CORRECTIONS, off_policy_mask, weights_of
from dagrpo.algorithms.divergence import Estimator, divergence
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.terms import TERMS
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch

LOGPROBS = (0.0, -1e-8, -1e-4, -0.6931, -20.0, -100.0, -1e4)
EDGES = [
    *itertools.product(LOGPROBS, LOGPROBS, LOGPROBS, (-2.0, 0.0, 2.0))
]  # policy, before the step, engine, advantage
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# Parameters at the ends of their ranges, where a formula has others than bounds.
KEYS: dict[str, list[dict[str, Any]]] = {
    "dppo": [{"divergence": "kl"}, {"divergence": "kl", "limit_low": 1000.0, "limit_high": 1000.0, "maximum": 1e5}],
    "cispo": [{"anchor": "rollout", "maximum": 1000.0}],
    "gmpo": [{"clip_low": 20.0, "clip_high": 20.0}],
    "on_policy_distillation": [{"trust_region": None}, {"largest": 10.0}],
    "ppo_clip": [{"dual_clip": 1000.0}],
    "sapo": [{f"temperature_{sign}_advantage": value for sign in ("positive", "negative")} for value in (1e-3, 1e3)],
    "vespo": [
        {f"{name}_{sign}_advantage": value for sign in ("positive", "negative") for name, value in pair.items()}
        for pair in (
            {"power": 0.0, "decay": 1000.0},
            {"power": 1000.0, "decay": 1e-3},
            {"power": 1000.0, "decay": 1000.0},
        )
    ],
}
LOSS_CASES = [(name, keys) for name in LOSSES.own_names() for keys in [{}, *KEYS.get(name, [])]]
# Losses whose gradient is not along the advantage alone: a penalty, or a teacher's logprobs in its place.
OTHERWISE_DRIVEN = {"dro", "kl_cov", "on_policy_distillation"}


def at_the_edges(dtype: torch.dtype, *, alone: bool = True) -> TokenBatch:
    """Each token a sequence of its own, or in sequences of three tokens."""
    logprobs, old, rollout, advantages = torch.tensor(EDGES, dtype=torch.float64).to(dtype).T
    sequence = torch.arange(len(EDGES)) // (1 if alone else 3)
    return TokenBatch(
        logprobs=logprobs.clone().requires_grad_(),
        old_logprobs=old,
        rollout_logprobs=rollout,
        reference_logprobs=old,
        entropy=-logprobs * logprobs.exp(),
        advantages=advantages,
        positive=advantages > 0,
        sequence=sequence,
        sequences=int(sequence[-1]) + 1,
        teacher_logprobs=rollout,
    )


def selected(batch: TokenBatch, name: str) -> TokenBatch:
    select = LOSSES.get(name).select
    if select is None:
        return batch
    config = LOSSES.get(name).config.model_validate({"name": name, "share": 1.0})
    whole = MiniBatch(
        logprobs=batch.old_logprobs.float(), entropy=batch.entropy.float(), advantages=batch.advantages.float(), seed=0
    )
    return replace(batch, selected=select(whole, config).to(batch.logprobs.dtype))


def require_finite(what: Mapping[str, torch.Tensor], batch: TokenBatch) -> None:
    for name, values in what.items():
        if values.ndim and len(values) == len(EDGES):
            bad = [EDGES[place] for place in (~values.isfinite()).nonzero().flatten().tolist()]
            assert not bad, f"{name} at {bad[:5]}"
        assert bool(values.isfinite().all()), name


def gradient_of(values: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(values.sum(), batch.logprobs, allow_unused=True)
    return torch.zeros_like(batch.logprobs) if gradient is None else gradient


@DTYPES
@pytest.mark.parametrize("alone", [True, False], ids=["tokens", "sequences"])
@pytest.mark.parametrize(("name", "keys"), LOSS_CASES, ids=lambda value: str(value) if isinstance(value, str) else None)
def test_a_loss_is_a_number_and_pushes_no_token_against_its_advantage(
    name: str, keys: dict[str, Any], alone: bool, dtype: torch.dtype
) -> None:
    batch = selected(at_the_edges(dtype, alone=alone), name)
    loss = loss_of(batch, LOSSES.get(name).config.model_validate({"name": name, **keys}))
    gradient = gradient_of(loss.per_token, batch)
    require_finite({"loss": loss.per_token, "gradient": gradient, **loss.metrics}, batch)
    if name not in OTHERWISE_DRIVEN:
        assert not bool((gradient * batch.advantages > 0).any())


@DTYPES
@pytest.mark.parametrize("alone", [True, False], ids=["tokens", "sequences"])
def test_terms_corrections_and_divergences_are_numbers(alone: bool, dtype: torch.dtype) -> None:
    batch = at_the_edges(dtype, alone=alone)
    for name in TERMS.own_names():
        loss = TERMS.get(name).function(batch, TERMS.get(name).config())
        gradient = gradient_of(loss.per_token + batch.logprobs * 0, batch)
        require_finite({name: loss.per_token, f"gradient of {name}": gradient}, batch)
    for name in CORRECTIONS.own_names():
        for keys in [{}, *([{"minimum": 0.0, "maximum": 1000.0}] if "masked" in name else [])]:
            correction = weights_of(batch, CORRECTIONS.get(name).config.model_validate({"name": name, **keys}))
            require_finite({name: correction.per_token, **correction.metrics}, batch)
            assert bool((correction.per_token >= 0).all())
    for estimator in get_args(Estimator):
        assert batch.reference_logprobs is not None
        values = divergence(batch.logprobs, batch.reference_logprobs, estimator)
        require_finite({estimator: values, f"gradient of {estimator}": gradient_of(values, batch)}, batch)
    assert off_policy_mask(batch, 0.1).dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("engine", "policy", "advantage", "gradient"),
    [
        # 1 log(1 / 0.5) = 0.69 is beyond 0.05, and so is (1 - 0.5) log(0.5 / 0); 1 to 1 is no distance.
        (0.0, -math.log(2), -1.0, 0.0),
        (0.0, -math.log(2), 1.0, -0.5),
        (-math.log(2), 0.0, 1.0, 0.0),
        (-math.log(2), 0.0, -1.0, 2.0),
        (0.0, 0.0, 1.0, -1.0),
        (0.0, 0.0, -1.0, 1.0),
        (-1e4, 0.0, 1.0, 0.0),
        (0.0, -1e4, -1.0, 0.0),
        # 20 is the largest ratio.
        (-1e4, 0.0, -1.0, 20.0),
        (-1e4, -1e4, 1.0, -1.0),
    ],
)
def test_dppo_measures_tokens_that_are_certain_or_impossible(
    engine: float, policy: float, advantage: float, gradient: float, dtype: torch.dtype
) -> None:
    """By hand, the gradient -A min(ratio, 20), or 0 where the token is masked."""
    one = torch.ones(1, dtype=dtype)
    batch = replace(
        at_the_edges(dtype),
        logprobs=(one * policy).requires_grad_(),
        rollout_logprobs=one * engine,
        advantages=one * advantage,
    )
    config = LOSSES.get("dppo").config.model_validate({"name": "dppo", "divergence": "kl"})
    loss = loss_of(batch, config)
    assert gradient_of(loss.per_token, batch).tolist() == pytest.approx(
        [gradient], rel=1e-2 if dtype == torch.bfloat16 else 1e-6
    )
    assert int(loss.metrics["clip_fraction"]) == (gradient == 0)


@pytest.mark.parametrize("name", LOSSES.own_names())
def test_of_no_tokens_there_is_no_loss(name: str) -> None:
    """A mask may leave none in a micro-batch."""
    batch = selected(at_the_edges(torch.float32), name)
    batch = batch.only(torch.zeros(len(EDGES), dtype=torch.bool))
    assert len(loss_of(batch, LOSSES.get(name).config(name=name)).per_token) == 0


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_a_mini_batch_in_which_nothing_counts_weighs_nothing(aggregation: Aggregation) -> None:
    lengths = Lengths(tokens=[0, 0], prompts=[0, 1])
    shares, denominator = weights(aggregation, torch.tensor([0, 0, 1]), 0, lengths, max_new_tokens=5)
    assert (shares / denominator).tolist() == [0.0, 0.0, 0.0]


SETS_OF_REWARDS = {
    "equal": [0.3] * 6,
    "equal and large": [1e30] * 6,
    "all wrong": [0.0] * 6,
    "one right": [0.0] * 5 + [1.0],
    "hardly different": [1.0] * 5 + [1.0 + 2.0**-23],
    "far apart": [0.0] * 5 + [1e30],
}


@pytest.mark.parametrize("sizes", [(3, 3), (6, 0), (1,) * 6], ids=["two groups", "one group", "one completion each"])
@pytest.mark.parametrize("rewards", SETS_OF_REWARDS.values(), ids=SETS_OF_REWARDS)
@pytest.mark.parametrize("name", ADVANTAGES.own_names())
def test_an_advantage_is_a_number_and_0_where_all_are_equal(
    name: str, rewards: list[float], sizes: tuple[int, ...]
) -> None:
    """Of rewards in float32, as they are."""
    rewards = torch.tensor(rewards).double().tolist()
    batch = everything(rewards, *filter(None, sizes)) if sizes != (6, 0) else everything(rewards, 6)
    advantage = ADVANTAGES.get(name)
    advantages = advantages_of(batch, advantage.config(name=name))
    assert bool(advantages.isfinite().all())
    if len(set(rewards)) == 1 or (sizes == (1,) * 6 and advantage.compares):
        assert advantages.tolist() == [0.0] * 6
    elif advantage.compares and name != "gdpo":
        assert float(advantages[-1]) > 0


@pytest.mark.parametrize("name", ADVANTAGES.own_names())
def test_a_policy_that_is_certain_or_hardly_possible_has_advantages(name: str) -> None:
    batch = everything([1.0, 0.0, 0.0, 1.0], 2, lengths=[2, 1, 2, 1])
    assert batch.policy is not None
    for logprob, collision in ((0.0, 1.0), (-1e4, 1.0), (-1e4, 0.0)):
        policy = replace(
            batch.policy,
            logprobs=torch.full((6,), logprob, dtype=torch.float64),
            collision=torch.full((6,), collision, dtype=torch.float64),
        )
        assert bool(
            advantages_of(replace(batch, policy=policy), ADVANTAGES.get(name).config(name=name)).isfinite().all()
        )
