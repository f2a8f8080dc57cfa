"""TRL and verl compute the losses, gradients and divergences that are computed here.

They need an environment of their own (requirements/objectives-test.lock): DAGRPO_OBJECTIVES_PYTHON names its Python, as
`make oracle` does.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.oracles.asking import answers, require

from dagrpo.algorithms.aggregation import Aggregation, Lengths, weights
from dagrpo.algorithms.divergence import divergence
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.tokens import MiniBatch, TokenBatch

LENGTHS = [3, 1, 5, 4]
MAX_NEW_TOKENS = 5
# Weights of tokens are of single precision here, and verl adds 1e-8 to lengths and probabilities.
NEAR: dict[str, Any] = {"rel": 1e-6, "abs": 1e-7}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loss of ours, and what computes it elsewhere."""

    loss: str  # or the estimator of a divergence
    keys: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Aggregation
    library: str
    function: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.library}-{self.function}"


def _trl(
    loss: str, loss_type: str, aggregation: Aggregation, keys: Mapping[str, Any] | None = None, **options: Any
) -> Case:
    options = {"max_completion_length": MAX_NEW_TOKENS, **options}
    return Case(loss=loss, keys=keys or {}, aggregation=aggregation, library="trl", function=loss_type, options=options)


def _verl(
    loss: str, loss_mode: str, aggregation: Aggregation, keys: Mapping[str, Any] | None = None, **options: Any
) -> Case:
    return Case(
        loss=loss, keys=keys or {}, aggregation=aggregation, library="verl", function=loss_mode, options=options
    )


CLIP: dict[str, Any] = {"epsilon_low": 0.2, "epsilon_high": 0.28}
VERL_CLIP: dict[str, Any] = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OF_SEQUENCES: dict[str, Any] = {"epsilon_low": 0.02, "epsilon_high": 0.03, "importance_sampling_level": "sequence"}
OURS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
OURS_OF_SEQUENCES: dict[str, Any] = {"clip_low": 0.02, "clip_high": 0.03}
UNCLIPPED: dict[str, Any] = {"clip_low": 0.99, "clip_high": 100.0}
SUM_NORM = "seq-mean-token-sum-norm"
VESPO: dict[str, Any] = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
# The engine's logprobs are the old ones to a library that knows no other.
ANCHORED: dict[str, Any] = {"anchor": "rollout_logprobs", "loss_scale_factor": MAX_NEW_TOKENS}
CASES = [
    _trl("ppo_clip", "dapo", "token-mean", OURS, **CLIP),
    _trl("ppo_clip", "grpo", "seq-mean-token-mean", OURS, **CLIP),
    _trl("ppo_clip", "dr_grpo", "constant", OURS, **CLIP),
    _trl("ppo_clip", "dapo", "token-mean", {**OURS, "dual_clip": 1.4}, **CLIP, delta=1.4),
    _trl("gspo", "grpo", "seq-mean-token-mean", OURS_OF_SEQUENCES, **OF_SEQUENCES),
    _trl("luspo", "luspo", "seq-mean-token-sum", OURS_OF_SEQUENCES, **OF_SEQUENCES),
    _trl("cispo", "cispo", "token-mean", {"maximum": 1.2}, epsilon_high=1.2),
    _trl("sapo", "sapo", "seq-mean-token-mean", sapo_temperature_pos=1.0, sapo_temperature_neg=1.05),
    _trl("vespo", "vespo", "token-mean", **VESPO),
    _trl("top_entropy", "dapo", "token-mean", {**OURS, "share": 0.3}, **CLIP, top_entropy_quantile=0.3),
    _verl("ppo_clip", "vanilla", "token-mean", {**OURS, "dual_clip": 1.4}, **VERL_CLIP, clip_ratio_c=1.4),
    _verl(
        "gspo",
        "gspo",
        "seq-mean-token-mean",
        OURS_OF_SEQUENCES,
        clip_ratio_low=0.02,
        clip_ratio_high=0.03,
        loss_agg_mode="seq-mean-token-mean",  # without it verl takes the mean over tokens, which is not the paper's
    ),
    _verl("sapo", "sapo", "seq-mean-token-mean"),
    _verl("gpg", "gpg", "token-mean"),
    _verl("gmpo", "geo_mean", "seq-mean-token-mean", OURS, **VERL_CLIP),
    _verl("cispo", "cispo", "token-mean", {"maximum": 1.2}, clip_ratio_low=1.0, clip_ratio_high=0.2),
    _verl("dro", "dro", "token-mean", {"beta": 0.3}, policy_loss={"dro_beta": 0.3}),
    _verl(
        "dppo",
        "dppo_tv",
        "constant",
        {"limit_low": 0.02, "limit_high": 0.03},
        clip_ratio_low=0.02,
        clip_ratio_high=0.03,
        clip_ratio_c=20.0,
        loss_agg_mode=SUM_NORM,
        **ANCHORED,
    ),
    _verl(
        "dppo",
        "dppo_kl",
        "constant",
        {"divergence": "kl", "limit_low": 0.005, "limit_high": 0.005},
        clip_ratio_low=0.005,
        clip_ratio_high=0.005,
        clip_ratio_c=20.0,
        loss_agg_mode=SUM_NORM,
        **ANCHORED,
    ),
    # The whole band is left out: there is no draw. Tokens that PPO clips are in no band of verl's: nothing is clipped.
    _verl(
        "clip_cov",
        "clip_cov",
        "token-mean",
        {**UNCLIPPED, "share": 1.0, "covariance_low": 0.1},
        clip_ratio_low=0.99,
        clip_ratio_high=100.0,
        policy_loss={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1},
    ),
    _verl(
        "kl_cov",
        "kl_cov",
        "token-mean",
        {"share": 0.3, "coefficient": 0.7},
        policy_loss={"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.7},
    ),
    *(
        Case(loss=name, aggregation="token-mean", library="verl_divergence", function=name, options={})
        for name in ("k1", "abs", "k2", "k3", "k1+", "k3+")
    ),
]


def _drawn(low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(len(LENGTHS), max(LENGTHS), dtype=torch.float64).uniform_(low, high, generator=generator)


def _batch() -> dict[str, torch.Tensor]:
    """Of sequences side by side, padded on the right. [sequences, tokens] each"""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).double()
    old = _drawn(-2.5, -0.5, generator)
    return {
        "mask": mask,
        "old_logprobs": old,
        "logprobs": old + _drawn(-0.4, 0.4, generator),
        "rollout_logprobs": old + _drawn(-0.1, 0.1, generator),
        "reference_logprobs": old + _drawn(-0.5, 0.5, generator),
        "entropy": _drawn(0.1, 2.0, generator),
        "advantages": torch.tensor([[1.2], [-0.7], [-1.5], [0.4]], dtype=torch.float64) * mask,
    }


def _tokens(batch: Mapping[str, torch.Tensor], case: Case) -> TokenBatch:
    """The same, flat. To TRL, whose VESPO knows no engine here, the engine's logprobs are the old ones."""
    mask = batch["mask"].bool()
    flat = {name: values[mask] for name, values in batch.items()}
    return TokenBatch(
        logprobs=flat["logprobs"].requires_grad_(),
        old_logprobs=flat["old_logprobs"],
        rollout_logprobs=flat["old_logprobs" if case.library == "trl" else "rollout_logprobs"],
        reference_logprobs=flat["reference_logprobs"],
        entropy=flat["entropy"],
        advantages=flat["advantages"],
        positive=flat["advantages"] > 0,
        sequence=torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)),
        sequences=len(LENGTHS),
        selected=_selected(flat, case),
    )


def _selected(flat: Mapping[str, torch.Tensor], case: Case) -> torch.Tensor | None:
    """The libraries select by the policy as it is; here it is the one before the step's first update."""
    select = LOSSES.get(case.loss).select if case.library != "verl_divergence" else None
    if select is None:
        return None
    whole = MiniBatch(
        logprobs=flat["logprobs"].detach(), entropy=flat["entropy"], advantages=flat["advantages"], seed=0
    )
    return select(whole, LOSSES.get(case.loss).config.model_validate({"name": case.loss, **case.keys}))


def _ours(case: Case) -> tuple[float, list[float]]:
    """The loss and its gradient. [tokens]"""
    tokens = _tokens(_batch(), case)
    if case.library == "verl_divergence":
        assert tokens.reference_logprobs is not None
        loss = divergence(tokens.logprobs, tokens.reference_logprobs, case.function).sum()  # type: ignore[arg-type]
    else:
        config = LOSSES.get(case.loss).config.model_validate({"name": case.loss, **case.keys})
        lengths = Lengths(tokens=LENGTHS, prompts=[0, 0, 1, 1])
        shares, denominator = weights(case.aggregation, tokens.sequence, 0, lengths, max_new_tokens=MAX_NEW_TOKENS)
        loss = (loss_of(tokens, config).per_token * shares).sum() / denominator
    (gradient,) = torch.autograd.grad(loss, tokens.logprobs)
    return float(loss.detach()), gradient.tolist()


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    """What the libraries compute. [cases]"""
    cases = [{"library": case.library, "function": case.function, "options": case.options} for case in CASES]
    batch = {name: values.tolist() for name, values in _batch().items()}
    return answers("objectives.py", {"batch": batch, "cases": cases})


@pytest.mark.parametrize(
    ("place", "case"), enumerate(CASES), ids=[f"{place}-{case}" for place, case in enumerate(CASES)]
)
def test_the_loss_and_its_gradient_are_the_librarys(place: int, case: Case, theirs: list[dict[str, Any]]) -> None:
    result = theirs[place]
    require(case.library.removesuffix("_divergence"), result)
    loss, gradient = _ours(case)
    expected = torch.tensor(result["gradient"], dtype=torch.float64)[_batch()["mask"].bool()]
    assert loss == pytest.approx(result["loss"], **NEAR)
    assert gradient == pytest.approx(expected.tolist(), **NEAR)
    assert any(gradient), "a gradient of zeros compares nothing"


CERTAIN = [0.0, -1e-9, -1e-6, -0.01, -0.7, -5.0, -30.0, -1e4]
ENGINE, POLICY, ADVANTAGE = zip(*itertools.product(CERTAIN, CERTAIN, (-1.0, 1.0)), strict=True)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_masks_the_tokens_that_verl_masks_in_float32_where_one_is_certain_or_impossible(divergence: str) -> None:
    batch: dict[str, Any] = {
        "mask": [[1.0] * len(ENGINE)],
        "advantages": [ADVANTAGE],
        "logprobs": [POLICY],
        "rollout_logprobs": [ENGINE],
    }
    limits = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05, "clip_ratio_c": 20.0, "anchor": "rollout_logprobs"}
    case = {"library": "verl", "function": f"dppo_{divergence}", "dtype": "float32", "batch": batch}
    (theirs,) = answers("objectives.py", {"batch": {}, "cases": [{**case, "options": limits}]})
    require("verl", theirs)
    tensors = {name: torch.tensor(rows[0], dtype=torch.float32) for name, rows in batch.items()}
    tokens = TokenBatch(
        logprobs=tensors["logprobs"].requires_grad_(),
        old_logprobs=tensors["rollout_logprobs"],
        rollout_logprobs=tensors["rollout_logprobs"],
        reference_logprobs=None,
        entropy=torch.zeros(len(ENGINE)),
        advantages=tensors["advantages"],
        positive=tensors["advantages"] > 0,
        sequence=torch.arange(len(ENGINE)),
        sequences=len(ENGINE),
    )
    keys = {"name": "dppo", "divergence": divergence, "limit_low": 0.05, "limit_high": 0.05}
    loss = loss_of(tokens, LOSSES.get("dppo").config.model_validate(keys)).per_token.mean()
    (gradient,) = torch.autograd.grad(loss, tokens.logprobs)
    torch.testing.assert_close(gradient, torch.tensor(theirs["gradient"][0]), rtol=1e-6, atol=0)
    assert 0 < int((gradient == 0).sum()) < len(ENGINE)
