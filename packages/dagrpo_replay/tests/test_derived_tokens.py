"""Completions are explained by weights and seeds, with every limit that SGLang knows."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import runs

from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest, ScoringRequest
from dagrpo_replay.audit.engine import DerivingEngine, Turn, deriving_engine, turns_by_seed

REQUEST = SamplingRequest(input_ids=(5, 6, 7), seed=11, temperature=0.7, top_p=1.0, top_k=-1, max_new_tokens=30)


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))[0]


def _engine(initial: Path, dtype: str = "float32", turns: dict[int, Turn] | None = None) -> DerivingEngine:
    return deriving_engine(initial, turns=turns, dtype=dtype, head_dtype=None)


@pytest.mark.parametrize(
    ("limits", "dtype"),
    [
        *(({}, dtype) for dtype in ("float32", "float16", "bfloat16")),
        *(({"temperature": 0.0}, dtype) for dtype in ("float32", "bfloat16")),
        *((limits, "float32") for limits in ({"top_k": 5}, {"top_k": 9, "top_p": 0.5}, {"top_p": 0.9})),
        *((limits, "bfloat16") for limits in ({"top_k": 5}, {"top_p": 0.9})),
    ],
)
def test_a_completion_is_explained_and_any_other_token_is_not(
    limits: dict[str, Any], dtype: str, initial: Path
) -> None:
    """In 16 bits, what another kernel would give: float32's completion."""
    request = replace(REQUEST, **limits)
    (written,) = _engine(initial).generate([request])
    turn = Turn(name="row 0", token_ids=written.token_ids, logprobs=written.logprobs, support=())
    engine = _engine(initial, dtype, {request.seed: turn})
    assert engine.generate([request])[0].token_ids == written.token_ids
    seen = engine.explained
    assert (seen.faults, seen.tokens) == ([], len(written.token_ids))
    assert seen.exact == seen.tokens or dtype != "float32"
    other = (*written.token_ids[:2], (written.token_ids[2] + 100) % 200 + 4, *written.token_ids[3:])
    engine = _engine(initial, dtype, {request.seed: replace(turn, token_ids=other)})
    engine.generate([request])
    assert engine.explained.faults[0].startswith(f"row 0: token 2 is {other[2]}, and weights and seed give ")


def test_another_sampling_mask_is_named(initial: Path) -> None:
    request = replace(REQUEST, top_k=2, max_new_tokens=1, support=True)
    (written,) = _engine(initial).generate([request])
    (logprobs,) = _engine(initial).score([ScoringRequest(token_ids=(5, 6, 7, *written.token_ids), first=3)])
    turn = Turn(name="row 0", token_ids=written.token_ids, logprobs=logprobs, support=((*written.token_ids, 0),))
    engine = _engine(initial, turns={request.seed: turn})
    engine.generate([request])
    assert "row 0: the sampling mask of token 0 is another one" in engine.explained.faults


def test_masks_that_nobody_asked_for_are_named(initial: Path) -> None:
    """With them any logprob is derived."""
    (written,) = _engine(initial).generate([replace(REQUEST, max_new_tokens=1)])
    turn = Turn(name="row 0", token_ids=written.token_ids, logprobs=(0.0,), support=(written.token_ids,))
    engine = _engine(initial, turns={REQUEST.seed: turn})
    engine.generate([replace(REQUEST, max_new_tokens=1)])
    assert "row 0: it has sampling masks, and none are due" in engine.explained.faults
    assert any("the logprob of token 0 is 0.0000" in each for each in engine.explained.faults)


def test_a_token_that_is_never_drawn_widens_no_margin(initial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that was made for it: one logit is so low that a share of it would explain any token."""
    logits = DerivingEngine._logits

    def with_a_low_one(engine: DerivingEngine, token_ids: Any, count: int) -> Any:
        found = logits(engine, token_ids, count).clone()
        found[:, 0] = -1e9
        return found

    monkeypatch.setattr(DerivingEngine, "_logits", with_a_low_one)
    (written,) = _engine(initial).generate([REQUEST])
    other = (*written.token_ids[:2], (written.token_ids[2] + 100) % 200 + 4, *written.token_ids[3:])
    turn = Turn(name="row 0", token_ids=other, logprobs=written.logprobs, support=())
    engine = _engine(initial, turns={REQUEST.seed: turn})
    engine.generate([REQUEST])
    assert engine.explained.faults[0].startswith(f"row 0: token 2 is {other[2]}, and weights and seed give ")


def test_an_end_that_the_engine_would_not_have_written_is_named(initial: Path) -> None:
    (written,) = _engine(initial).generate([REQUEST])
    assert written.finish_reason == "length", "else choose another seed"
    turn = Turn(name="row 0", token_ids=written.token_ids[:9], logprobs=written.logprobs[:9], support=())
    for limit, faults in ((9, []), (30, ["row 0: the completion of 9 tokens ends without a stop token"])):
        engine = _engine(initial, turns={REQUEST.seed: turn})
        engine.generate([replace(REQUEST, max_new_tokens=limit)])
        assert engine.explained.faults == faults


def test_a_token_outside_the_vocabulary_is_named_and_not_read(initial: Path) -> None:
    turn = Turn(name="row 0", token_ids=(1 << 30,), logprobs=(0.0,), support=())
    engine = _engine(initial, turns={REQUEST.seed: turn})
    assert len(engine.generate([REQUEST])[0].token_ids) == REQUEST.max_new_tokens
    assert engine.explained.faults == ["row 0: it has tokens that the policy does not know"]


def test_a_row_whose_columns_differ_in_length_is_refused() -> None:
    row = {"problem_index": 0, "sample_index": 0, "sampling_seed": 1, "samples": []}
    with pytest.raises(UserError, match="differ in number"):
        turns_by_seed([row | {"completion_ids": [1, 2], "rollout_logprobs": [0.0]}])


AGAINST_SGLANG = """
import torch
from dagrpo.core.types import SamplingRequest
from dagrpo_replay.audit.engine import sums
from sglang.srt.layers.sampler import sampling_from_probs_torch, top_k_top_p_min_p_sampling_from_probs_torch
generator = torch.Generator().manual_seed(3)
for vocabulary, spread in ((260, 3.0), (5000, 3.0)):
    for top_k, top_p in ((-1, 1.0), (5, 1.0), (50, 0.7), (-1, 0.8)):
        logits = torch.randn(64, vocabulary, generator=generator) * spread
        request = SamplingRequest(input_ids=(1,), seed=5, temperature=0.6, top_p=top_p, top_k=top_k, max_new_tokens=1)
        probs, seeds, positions = (logits / 0.6).softmax(-1), torch.full((64,), 5), torch.arange(9, 73)
        limits = [torch.full((64,), each) for each in (vocabulary if top_k == -1 else top_k, top_p, 0.0)]
        ranked = top_k_top_p_min_p_sampling_from_probs_torch(probs.clone(), *limits, False, seeds, positions)
        print(torch.equal(sums(logits, request, 9, by_rank=True).argmax(1), ranked.long()))
        drawn = sampling_from_probs_torch(probs.clone(), seeds, positions)
        print(torch.equal(sums(logits, request, 9, by_rank=False).argmax(1), drawn.long()))
"""


@pytest.mark.nightly
def test_the_sums_are_those_of_the_installed_sglang() -> None:
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_PLUGINS": "none"}
    command = [sys.executable, "-c", AGAINST_SGLANG]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"] * 16, done.stderr[-2000:]
