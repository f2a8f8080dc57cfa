"""What holds of every loss with every aggregation, through the objective: how a mini-batch is cut, ordered and padded
changes neither its loss nor its gradient, and a token that is not trained on has no influence.

In double, to 1e-12. No model: the logprobs themselves are what is differentiated. A loss that lacks one of these is excluded
by name, with the reason; none does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dagrpo.algorithms.aggregation import Aggregation, Lengths
from dagrpo.algorithms.config import Algorithm
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.terms import TERMS
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, MicroBatchSplitter
from dagrpo.trainer.model.policy import TokenLogprobs
from dagrpo.trainer.update.mini_batches import filler
from dagrpo.trainer.update.objective import Objective

CASES = [
    (name, aggregation)
    for name, aggregation in itertools.product(LOSSES.own_names(), get_args(Aggregation))
    if aggregation not in LOSSES.get(name).same_with  # those are refused
]
every_loss = pytest.mark.parametrize(("name", "aggregation"), CASES)
a_few = settings(max_examples=2, deadline=None)
seeds = st.integers(0, 1 << 30)
TOKENS = [3, 1, 4, 2, 5, 2]
PROMPTS = [0, 0, 3, 5, 5, 5]
RIGHT = [True, False, True, True, False, False]
LENGTHS = Lengths(tokens=TOKENS, prompts=PROMPTS)
PER_TOKEN = (
    "logprobs",
    "old_logprobs",
    "rollout_logprobs",
    "reference_logprobs",
    "teacher_logprobs",
    "entropy",
    "advantages",
    "positive",
)
EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of a mini-batch."""

    loss: Tensor
    gradient: Tensor  # by what was differentiated
    measured: dict[str, float]

    def require_equal(self, other: "Result") -> None:
        torch.testing.assert_close(self.loss, other.loss, **EXACT)
        torch.testing.assert_close(self.gradient, other.gradient, **EXACT)
        assert self.measured == pytest.approx(other.measured, abs=1e-12)


def _config(name: str) -> Choice:
    """As published, but that of 17 tokens some are selected."""
    share = {"share": 0.3} if LOSSES.get(name).select else {}
    config: Choice = LOSSES.get(name).config.model_validate({"name": name, **share})
    return config


def _left_out(name: str) -> set[str]:
    """The terms that would count twice: beside this loss, and beside the term entropy."""
    return {"adaptive_entropy", *(["distillation"] if LOSSES.get(name).needs_teacher else [])}


def _objective(
    name: str, aggregation: str, correction: str = "token_truncated", off_policy_mask: float = 0.0
) -> Objective:
    """With a divergence and every term beside the loss, and a correction where the loss takes one."""
    loss = _config(name)
    correction = "none" if LOSSES.get(name).anchored_on_rollout(loss) else correction
    algorithm: dict[str, Any] = {
        "loss": loss,
        "aggregation": aggregation,
        "correction": {"name": correction},
        "off_policy_mask": off_policy_mask,
        "terms": {term: {"coefficient": 0.2} for term in TERMS.own_names() if term not in _left_out(name)},
        "kl": {"coefficient": 0.1, "corrected": True},
        "teacher": {"source": "initial", "prompt": "with_solution"},
    }
    return Objective(Algorithm.model_validate(algorithm), 9, None)


def _values(seed: int, low: float, high: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(sum(TOKENS), dtype=torch.float64).uniform_(low, high, generator=generator)


def _mini_batch(seed: int) -> TokenBatch:
    """Six sequences of three prompts: not on-policy, and the engine has other logprobs than the trainer."""
    sequence = torch.arange(len(TOKENS)).repeat_interleave(torch.tensor(TOKENS))
    old = _values(seed, -2.5, -0.5)
    return TokenBatch(
        logprobs=old + _values(seed + 1, -0.4, 0.4),
        old_logprobs=old,
        rollout_logprobs=old + _values(seed + 2, -0.1, 0.1),
        reference_logprobs=old + _values(seed + 3, -0.5, 0.5),
        entropy=_values(seed + 4, 0.0, 2.0),
        advantages=_values(seed + 5, -1.5, 1.5)[sequence],
        positive=torch.tensor(RIGHT)[sequence],
        sequence=sequence,
        sequences=len(TOKENS),
        teacher_logprobs=old + _values(seed + 6, -0.5, 0.5),
    )


def _selected(batch: TokenBatch, name: str) -> TokenBatch:
    """With what the loss selects from the whole mini-batch."""
    select = LOSSES.get(name).select
    if select is None:
        return batch
    whole = MiniBatch(logprobs=batch.old_logprobs, entropy=batch.entropy, advantages=batch.advantages, seed=7)
    return replace(batch, selected=select(whole, _config(name)))


def _positive(lengths: Lengths, right: Sequence[bool]) -> Lengths:
    tokens = [count if is_right else 0 for count, is_right in zip(lengths.tokens, right, strict=True)]
    return replace(lengths, tokens=tokens)


def _part(batch: TokenBatch, lengths: Lengths, span: slice) -> TokenBatch:
    """Some of the sequences, as a micro-batch has them."""
    ends = [0, *itertools.accumulate(lengths.tokens)]
    own = slice(ends[span.start], ends[span.stop])
    fields: dict[str, Any] = {
        name: None if (value := getattr(batch, name)) is None else value[own] for name in (*PER_TOKEN, "selected")
    }
    return replace(batch, **fields, sequence=batch.sequence[own] - span.start, sequences=span.stop - span.start)


def _nothing(leaf: Tensor) -> TokenBatch:
    """What a rank computes that has no sequences left: one token, which hangs on the policy all the same."""
    logprobs = leaf.flatten()[:1] * 1
    outputs = TokenLogprobs(logprobs=logprobs, entropy=logprobs.detach(), collision=logprobs.detach())
    return filler(outputs, logprobs.detach())


def _computed(
    objective: Objective,
    batch: TokenBatch,
    spans: Sequence[slice],
    lengths: Lengths = LENGTHS,
    right: Sequence[bool] = RIGHT,
) -> Result:
    """The sum over micro-batches."""
    leaf = batch.logprobs.clone().requires_grad_()
    batch = replace(batch, logprobs=leaf)
    loss, measured = torch.zeros((), dtype=torch.float64), dict[str, float]()
    for span in spans:
        counts = span != NOTHING
        part = _part(batch, lengths, span) if counts else _nothing(leaf)
        added, sums = objective.loss(part, lengths, _positive(lengths, right), span.start, counts=counts)
        loss = loss + added
        for metric, value in sums.items():
            measured[metric] = measured.get(metric, 0.0) + float(value) * counts
    (gradient,) = torch.autograd.grad(loss, leaf)
    return Result(loss=loss.detach(), gradient=gradient, measured=measured)


WHOLE = [slice(0, len(TOKENS))]
NOTHING = slice(0, 0)


def _cut(size: int, ranks: int) -> list[slice]:
    """The micro-batches of all ranks."""
    each = [slice(row, row + 1) for row in range(len(TOKENS))]
    splitter = MicroBatchSplitter(_laid_out(), Budget(sequences=size))
    parts = [part for rank in range(ranks) for part in splitter.micro_batches(each, rank, ranks)]
    return [slice(part[0], part[-1] + 1) if part else NOTHING for part in parts]


@every_loss
@a_few
@given(seed=seeds, size=st.integers(1, 4), ranks=st.integers(1, 4))
def test_micro_batches_and_ranks_add_up_to_the_mini_batch(
    name: str, aggregation: str, seed: int, size: int, ranks: int
) -> None:
    objective = _objective(name, aggregation)
    batch = _selected(_mini_batch(seed), name)
    _computed(objective, batch, WHOLE).require_equal(_computed(objective, batch, _cut(size, ranks)))


@pytest.mark.parametrize("correction", CORRECTIONS.own_names())
@given(seed=seeds, size=st.integers(1, 4), ranks=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_micro_batches_and_ranks_change_no_correction_and_no_mask(
    correction: str, seed: int, size: int, ranks: int
) -> None:
    objective, batch = _objective("ppo_clip", "token-mean", correction, 0.05), _mini_batch(seed)
    _computed(objective, batch, WHOLE).require_equal(_computed(objective, batch, _cut(size, ranks)))


@every_loss
@a_few
@given(seed=seeds, order=st.permutations(range(len(TOKENS))))
def test_the_order_of_sequences_changes_nothing(name: str, aggregation: str, seed: int, order: list[int]) -> None:
    objective, batch = _objective(name, aggregation), _mini_batch(seed)
    places = torch.cat([(batch.sequence == row).nonzero().flatten() for row in order])
    lengths = Lengths(tokens=[TOKENS[row] for row in order], prompts=[PROMPTS[row] for row in order])
    moved = replace(
        batch,
        **{field: getattr(batch, field)[places] for field in PER_TOKEN},
        sequence=torch.arange(len(order)).repeat_interleave(torch.tensor(lengths.tokens)),
    )
    first = _computed(objective, _selected(batch, name), WHOLE)
    other = _computed(objective, _selected(moved, name), WHOLE, lengths=lengths, right=[RIGHT[row] for row in order])
    replace(first, gradient=first.gradient[places]).require_equal(other)


@every_loss
def test_a_filler_has_no_loss_and_no_gradient(name: str, aggregation: str) -> None:
    result = _computed(_objective(name, aggregation), _mini_batch(0), [NOTHING])
    assert float(result.loss) == 0
    assert result.gradient.tolist() == [0.0] * sum(TOKENS)


def _laid_out() -> TokenSequences:
    """Prompts of one to three tokens and as many trained ones as TOKENS; in the third sequence a tool's answer between them."""
    masks = [[False] * (1 + row % 3) + [True] * count for row, count in enumerate(TOKENS)]
    masks[2] = [False, True, True, False, False, True, True]
    return TokenSequences.of([[5] * len(mask) for mask in masks], masks)


@every_loss
@a_few
@given(seed=seeds, cut=st.integers(1, len(TOKENS) - 1))
def test_padding_changes_nothing_and_what_is_not_trained_on_has_no_influence(
    name: str, aggregation: str, seed: int, cut: int
) -> None:
    """Each position of each padded row has a logprob of its own: those that predict no trained token are not even numbers."""
    objective, sequences = _objective(name, aggregation), _laid_out()
    batch = _selected(_mini_batch(seed), name)
    everything = sequences.padded(range(len(TOKENS)), 0, torch.device("cpu"))
    table = torch.full(everything.input_ids.shape, float("nan"), dtype=torch.float64)
    table[everything.rows, everything.columns] = batch.logprobs
    table.requires_grad_()
    loss = torch.zeros((), dtype=torch.float64)
    for span in (slice(0, cut), slice(cut, len(TOKENS))):
        padded = sequences.padded(range(len(TOKENS))[span], 0, torch.device("cpu"))
        rows = table[span, : padded.input_ids.shape[1]]
        part = replace(_part(batch, LENGTHS, span), logprobs=rows[padded.rows, padded.columns])
        added, _ = objective.loss(part, LENGTHS, _positive(LENGTHS, RIGHT), span.start, counts=True)
        loss = loss + added
    (gradient,) = torch.autograd.grad(loss, table)
    unpadded = _computed(objective, batch, WHOLE)
    torch.testing.assert_close(loss.detach(), unpadded.loss, **EXACT)
    torch.testing.assert_close(gradient[everything.rows, everything.columns], unpadded.gradient, **EXACT)
    gradient[everything.rows, everything.columns] = 0
    assert int(gradient.count_nonzero()) == 0
