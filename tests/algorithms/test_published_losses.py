"""Every loss beside the formula of its paper, written out once more in plain Python, and differentiated by finite differences.

The formulas here know sequences and numbers, no tensors; what a paper holds constant ("sg") is computed from `now`, which
stays where it is while `logprob` is varied.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pytest
import torch

from dagrpo.algorithms.aggregation import Lengths, weights
from dagrpo.algorithms.losses import LOSSES, aggregation_of, loss_of
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch
from dagrpo.core.plugin_sections import Choice

MAX_NEW_TOKENS = 7
STEP = 1e-6
# Where the published bounds would clip every token of these batches, or select none.
KEYS: dict[str, dict[str, Any]] = {
    "gspo": {"clip_low": 0.02, "clip_high": 0.03},
    "luspo": {"clip_low": 0.02, "clip_high": 0.03},
    "ppo_clip": {"clip_high": 0.25, "dual_clip": 1.3},
    "gmpo": {"clip_low": 0.2, "clip_high": 0.2},
    "cispo": {"minimum": 0.7, "maximum": 1.3},
    "dppo": {"limit_low": 0.02, "limit_high": 0.03, "maximum": 1.4},
    "minirl": {"maximum": 1.4},
    "clip_cov": {"share": 0.3, "covariance_low": 0.0},
    "kl_cov": {"share": 0.3, "coefficient": 0.7},
    "on_policy_distillation": {"largest": 0.6, "trust_region": 0.05},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    logprob: float
    now: float  # the same before it is varied
    old: float
    rollout: float
    advantage: float
    selected: float
    teacher: float

    @property
    def ratio(self) -> float:
        return math.exp(self.logprob - self.old)

    @property
    def ratio_to_rollout(self) -> float:
        """Without a gradient."""
        return math.exp(self.now - self.rollout)


Sequences = Sequence[Sequence[Token]]


def _tokens(sequences: Sequences) -> list[Token]:
    return [token for sequence in sequences for token in sequence]


def _mean(sequences: Sequences, loss: Callable[[Token], float]) -> float:
    return fmean(loss(token) for token in _tokens(sequences))


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _ppo(token: Token, low: float, high: float) -> float:
    return -min(token.ratio * token.advantage, _clip(token.ratio, 1 - low, 1 + high) * token.advantage)


def _ppo_clip(sequences: Sequences) -> float:
    """Dual clip: where A < 0, max(min(rho A, clip(rho) A), c A)."""

    def dual(token: Token) -> float:
        loss = _ppo(token, 0.2, 0.25)
        return min(loss, -1.3 * token.advantage) if token.advantage < 0 else loss

    return _mean(sequences, dual)


def _sequence_ratio(sequence: Sequence[Token]) -> float:
    return math.exp(fmean(token.logprob - token.old for token in sequence))


def _gspo_of(sequence: Sequence[Token]) -> float:
    ratio, advantage = _sequence_ratio(sequence), sequence[0].advantage
    return -min(ratio * advantage, _clip(ratio, 0.98, 1.03) * advantage)


def _gspo(sequences: Sequences) -> float:
    return fmean(_gspo_of(sequence) for sequence in sequences)


def _luspo(sequences: Sequences) -> float:
    return fmean(len(sequence) * _gspo_of(sequence) for sequence in sequences)


def _cispo(sequences: Sequences) -> float:
    def loss(token: Token) -> float:
        return -_clip(math.exp(token.now - token.old), 0.7, 1.3) * token.advantage * token.logprob

    return _mean(sequences, loss)


def _sapo(sequences: Sequences) -> float:
    def gate(token: Token) -> float:
        tau = 1.0 if token.advantage > 0 else 1.05
        return 4 / tau / (1 + math.exp(-tau * (token.ratio - 1)))

    return fmean(fmean(-gate(token) * token.advantage for token in sequence) for sequence in sequences)


def _gmpo(sequences: Sequences) -> float:
    """The geometric mean of min(rho, e^0.2) where A > 0, of max(rho, e^-0.2) where A < 0."""

    def of(sequence: Sequence[Token]) -> float:
        positive = sequence[0].advantage > 0
        kept = [min(t.ratio, math.exp(0.2)) if positive else max(t.ratio, math.exp(-0.2)) for t in sequence]
        return -sequence[0].advantage * math.exp(fmean(map(math.log, kept)))

    return fmean(of(sequence) for sequence in sequences)


def _gpg(sequences: Sequences) -> float:
    return _mean(sequences, lambda token: -token.logprob * token.advantage)


def _clip_cov(sequences: Sequences) -> float:
    return _mean(sequences, lambda token: 0.0 if token.selected else _ppo(token, 0.2, 0.2))


def _kl_cov(sequences: Sequences) -> float:
    def loss(token: Token) -> float:
        penalty = 0.7 * abs(token.logprob - token.old) if token.selected else 0.0
        return -token.ratio * token.advantage + penalty

    return _mean(sequences, loss)


def _top_entropy(sequences: Sequences) -> float:
    return _mean(sequences, lambda token: _ppo(token, 0.2, 0.28) if token.selected else 0.0)


def _dppo(sequences: Sequences) -> float:
    """Binary total variation; divided by the number of sequences and their largest length."""

    def loss(token: Token) -> float:
        moved = math.exp(token.now) - math.exp(token.rollout)
        inside = moved <= 0.03 if token.advantage > 0 else moved >= -0.02
        return -inside * min(token.ratio_to_rollout, 1.4) * token.advantage * token.logprob

    return sum(map(loss, _tokens(sequences))) / len(sequences) / MAX_NEW_TOKENS


def _dis(sequences: Sequences) -> float:
    def loss(token: Token) -> float:
        weight = token.ratio_to_rollout if 0.8 < token.ratio_to_rollout < 1.28 else 0.0
        return -weight * token.advantage * token.logprob

    return _mean(sequences, loss)


def _minirl(sequences: Sequences) -> float:
    def loss(token: Token) -> float:
        ratio = math.exp(token.now - token.old)
        masked = (token.advantage > 0 and ratio > 1.27) or (token.advantage < 0 and ratio < 0.8)
        return 0.0 if masked else -min(token.ratio_to_rollout, 1.4) * token.advantage * token.logprob

    return fmean(sum(map(loss, sequence)) for sequence in sequences)


def _vespo(sequences: Sequences) -> float:
    def of(sequence: Sequence[Token]) -> Iterable[float]:
        ratio, advantage = math.prod(token.ratio_to_rollout for token in sequence), sequence[0].advantage
        power, decay = (2, 3) if advantage >= 0 else (3, 2)
        weight = ratio**power * math.exp(decay * (1 - ratio))
        return [-weight * advantage * token.logprob for token in sequence]

    return fmean(loss for sequence in sequences for loss in of(sequence))


def _dro(sequences: Sequences) -> float:
    return _mean(sequences, lambda t: -(t.logprob * t.advantage - 0.05 / 2 * (t.logprob - t.old) ** 2))


def _on_policy_distillation(sequences: Sequences) -> float:
    """Worth at most 0.6 either way; a token counts unless its probability has fallen by more than 0.05."""

    def loss(token: Token) -> float:
        fell = math.exp(token.old) - math.exp(token.now)
        return 0.0 if fell > 0.05 else -_clip(token.teacher - token.old, -0.6, 0.6) * token.ratio

    return _mean(sequences, loss)


PUBLISHED: dict[str, Callable[[Sequences], float]] = {
    "cispo": _cispo,
    "clip_cov": _clip_cov,
    "dis": _dis,
    "dppo": _dppo,
    "dro": _dro,
    "gmpo": _gmpo,
    "gpg": _gpg,
    "gspo": _gspo,
    "kl_cov": _kl_cov,
    "luspo": _luspo,
    "minirl": _minirl,
    "on_policy_distillation": _on_policy_distillation,
    "ppo_clip": _ppo_clip,
    "sapo": _sapo,
    "top_entropy": _top_entropy,
    "vespo": _vespo,
}


def _config(name: str) -> Choice:
    config: Choice = LOSSES.get(name).config.model_validate({"name": name, **KEYS.get(name, {})})
    return config


def _batch(config: Choice, seed: int) -> TokenBatch:
    """Four sequences with advantages of both signs. The policy is up to e^0.4 from the old one, the engine a little less."""
    lengths = torch.tensor([3, 1, 5, 4])
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.arange(4).repeat_interleave(lengths)

    def uniform(low: float, high: float) -> torch.Tensor:
        return torch.empty(13, dtype=torch.float64).uniform_(low, high, generator=generator)

    old = uniform(-2.5, -0.5)
    batch = TokenBatch(
        logprobs=(old + uniform(-0.4, 0.4)).requires_grad_(),
        old_logprobs=old,
        rollout_logprobs=old + uniform(-0.1, 0.1),
        reference_logprobs=None,
        entropy=uniform(0.0, 2.0),
        advantages=torch.tensor([1.2, -0.7, -1.5, 0.4], dtype=torch.float64)[sequence],
        positive=torch.zeros(13, dtype=torch.bool),
        sequence=sequence,
        sequences=4,
        teacher_logprobs=old + uniform(-1.0, 1.0),
    )
    select = LOSSES.get(config.name).select
    if select is None:
        return batch
    whole = MiniBatch(logprobs=old, entropy=batch.entropy, advantages=batch.advantages, seed=seed)
    return replace(batch, selected=select(whole, config))


def _written_out(batch: TokenBatch) -> list[list[Token]]:
    selected = torch.zeros_like(batch.entropy) if batch.selected is None else batch.selected
    assert batch.teacher_logprobs is not None
    logprobs = batch.logprobs.tolist()
    rows = zip(
        logprobs,
        logprobs,
        batch.old_logprobs.tolist(),
        batch.rollout_logprobs.tolist(),
        batch.advantages.tolist(),
        selected.tolist(),
        batch.teacher_logprobs.tolist(),
        strict=True,
    )
    names = ("logprob", "now", "old", "rollout", "advantage", "selected", "teacher")
    tokens = [Token(**dict(zip(names, row, strict=True))) for row in rows]
    places = batch.sequence.tolist()
    return [[t for t, place in zip(tokens, places, strict=True) if place == number] for number in range(4)]


def _ours(batch: TokenBatch, config: Choice) -> torch.Tensor:
    lengths = Lengths(tokens=[3, 1, 5, 4], prompts=[0, 0, 1, 1])
    token_weights, denominator = weights(
        aggregation_of("default", config), batch.sequence, 0, lengths, max_new_tokens=MAX_NEW_TOKENS
    )
    return (loss_of(batch, config).per_token * token_weights.double()).sum() / denominator


def _differences(sequences: list[list[Token]], published: Callable[[Sequences], float]) -> list[float]:
    """The derivative by each token's logprob, from both sides."""

    def varied(row: int, column: int, by: float) -> float:
        changed = [list(sequence) for sequence in sequences]
        changed[row][column] = replace(changed[row][column], logprob=changed[row][column].logprob + by)
        return published(changed)

    return [
        (varied(row, column, STEP) - varied(row, column, -STEP)) / (2 * STEP)
        for row, sequence in enumerate(sequences)
        for column in range(len(sequence))
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LOSSES.own_names())
def test_a_loss_and_its_gradient_are_those_of_the_paper(name: str, seed: int) -> None:
    config = _config(name)
    batch = _batch(config, seed)
    loss, sequences = _ours(batch, config), _written_out(batch)
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    # Weights of tokens are of single precision, which 1 / 3 is not.
    assert float(loss.detach()) == pytest.approx(PUBLISHED[name](sequences), rel=1e-6, abs=1e-7)
    assert gradient.tolist() == pytest.approx(_differences(sequences, PUBLISHED[name]), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", [name for name in KEYS if name != "luspo"])
def test_the_batches_reach_the_bounds_of_a_loss(name: str) -> None:
    """Else the test above would compare little: some token is clipped or selected, and some is not."""
    config = _config(name)
    measured: dict[str, float] = {}
    for seed in range(4):
        for metric, value in loss_of(_batch(config, seed), config).metrics.items():
            measured[metric] = measured.get(metric, 0.0) + float(value)
    assert measured
    assert all(0 < value < 4 * 13 for value in measured.values())
