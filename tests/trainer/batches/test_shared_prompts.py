"""A prompt that several sequences begin with is computed once: the same loss and gradient, and less work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer import in_double, runs, shared_prompt_runs
from tests.trainer.in_double import SIZES
from torch import nn
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.batches.budget import Budget, usual_sharing
from dagrpo.trainer.batches.micro_batches import MicroBatchSplitter, Part
from dagrpo.trainer.config.runtime import Layout, TrainingRuntime
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.sharing import require_sharing, resolved
from dagrpo.utils.distributed import single_process

CPU = torch.device("cpu")
tokens = st.lists(st.integers(1, 39), min_size=1, max_size=6)


def _sequences(pairs: list[tuple[list[int], list[int]]]) -> TokenSequences:
    """From prompts and completions."""
    return TokenSequences.of(
        [[*prompt, *completion] for prompt, completion in pairs],
        [[False] * len(prompt) + [True] * len(completion) for prompt, completion in pairs],
    )


THREE = _sequences([([5, 6, 7], [8, 9]), ([3, 4], [5]), ([5, 6, 7], [2])])


def test_shared_prompts_are_laid_out_as_written_by_hand() -> None:
    batch = THREE.padded(range(3), 0, CPU, share_prompts=True)
    assert batch.prompts is not None
    assert batch.prompts.input_ids.tolist() == [[5, 6], [3, 0]]
    assert batch.prompts.attention_mask.tolist() == [[1, 1], [1, 0]]
    assert batch.prompts.owners.tolist() == [0, 1, 0]
    assert batch.input_ids.tolist() == [[7, 8, 9], [4, 5, 0], [7, 2, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert (batch.rows.tolist(), batch.columns.tolist()) == ([0, 0, 1, 2], [0, 1, 0, 0])
    assert batch.targets.tolist() == [8, 9, 5, 2]


@pytest.mark.parametrize("numbers", [(0, 1), (1,)])
def test_where_no_two_sequences_share_one_nothing_is_taken_apart(numbers: tuple[int, ...]) -> None:
    assert THREE.padded(numbers, 0, CPU, share_prompts=True).prompts is None


def test_prompts_of_one_token_have_nothing_to_share() -> None:
    assert _sequences([([5], [8]), ([5], [9])]).padded(range(2), 0, CPU, share_prompts=True).prompts is None


@pytest.fixture(scope="module")
def policy() -> Policy:
    return in_double.policy()


@pytest.fixture(autouse=True, scope="module")
def _double() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Qwen2RMSNorm, "forward", in_double.norm)
        yield


@given(st.lists(tokens, min_size=1, max_size=3), st.data())
def test_logprobs_entropies_and_gradients_are_those_of_whole_sequences(
    policy: Policy, prompts: list[list[int]], data: st.DataObject
) -> None:
    """In double, to 1e-12, whatever the lengths are, and with tokens of a tool among those of the policy."""
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(prompts), tokens), min_size=1, max_size=6))
    sequences = _sequences(pairs)
    holes = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(sequences), max_size=len(sequences))))
    mask = sequences.loss_mask.clone()
    for number, (start, length) in enumerate(
        zip(sequences.lengths.cumsum(0) - sequences.lengths, sequences.lengths, strict=True)
    ):
        if holes[number] and sequences.trained[number] > 2:
            mask[start + length - 2] = False
    sequences = TokenSequences(token_ids=sequences.token_ids, loss_mask=mask, lengths=sequences.lengths)
    batches = [sequences.padded(range(len(sequences)), 0, CPU, share_prompts=share) for share in (False, True)]
    seen = [in_double.computed(policy, batch) for batch in batches]
    for whole, shared in zip(*seen, strict=True):
        torch.testing.assert_close(shared, whole, rtol=1e-12, atol=1e-12)


def test_a_prompt_is_computed_once_and_not_once_per_sample() -> None:
    read: list[int] = []
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    model.model.layers[0].register_forward_pre_hook(lambda layer, inputs: read.append(inputs[0].shape[:2].numel()))
    sequences = _sequences([([*range(1, 31)], [8, 9]) for _ in range(8)])
    for share in (False, True):
        token_logprobs(Policy(model), sequences.padded(range(8), 0, CPU, share_prompts=share), 1.0)
    assert read == [8 * 32, 29, 8 * 3]


@pytest.mark.parametrize(
    ("layout", "parts"),
    [("padded", [(0, 1, 2, 3), (5, 6, 7, 8), (4,)]), ("packed", [(0, 1, 2, 3), (5, 6, 7, 8, 4)])],
)
def test_micro_batches_keep_groups_together_and_count_a_prompt_once(layout: Layout, parts: list[Part]) -> None:
    """Prompts of 9, 5 and 9 tokens, without their last ones 8, 4 and 8. Within 25 tokens:

    8 of the first and four times 1 + 3 are 24. 8 of the third and four times 1 + 1 are 16. 4 of the second and 1 + 1 beside them are
    22 in packed rows; padded, two prompts of 8 and five sequences of 2 are 26.
    """
    pairs = [([*range(1, 10)], [2, 2, 2])] * 4 + [([1] * 5, [3])] + [([*range(2, 11)], [4])] * 4
    sequences, spans = _sequences(pairs), [slice(number, number + 1) for number in range(9)]
    splitter = MicroBatchSplitter(sequences, Budget(sequences=99, tokens=25, share_prompts=True, layout=layout))
    arranged = splitter.arranged(spans, 1)
    assert splitter.micro_batches(arranged, 0, 1) == parts


@pytest.mark.parametrize(
    "model",
    [
        Gemma2ForCausalLM(Gemma2Config(**SIZES, sliding_window=4)),
        MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)),
        DogeForCausalLM(DogeConfig(**SIZES, keep_window_size=4)),
    ],
    ids=["a window", "a state", "a choice"],
)
def test_a_model_that_does_not_keep_every_token_is_refused(model: Any) -> None:
    with pytest.raises(UserError, match=r"set runtime\.training\.share_prompts to false"):
        require_sharing(Policy(model.eval()))


def test_a_model_that_counts_positions_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)  # large enough for attention to be more than a mean
    require_sharing(Policy(model))
    read = model.model.forward
    monkeypatch.setattr(
        model.model, "forward", lambda **inputs: read(**{k: v for k, v in inputs.items() if k != "position_ids"})
    )
    with pytest.raises(UserError, match="share_prompts"):
        require_sharing(Policy(model))


@pytest.mark.parametrize(
    ("layout", "asked", "share"),
    [(None, None, True), ("packed", None, True), ("padded", None, False), (None, False, False), ("padded", True, True)],
)
def test_who_does_not_say_shares_prompts_in_packed_rows(layout: Layout | None, asked: bool | None, share: bool) -> None:
    policy = Policy(Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval())
    budget = resolved(TrainingRuntime(layout=layout, share_prompts=asked), policy, single_process())
    assert budget.layout == ("padded" if layout == "padded" else "packed")
    assert budget.share_prompts == share


def test_no_model_is_refused_that_cannot_share_prompts_if_nobody_asks_for_it() -> None:
    policy = Policy(MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)))
    budget = resolved(TrainingRuntime(), policy, single_process())
    assert (budget.layout, budget.share_prompts) == ("padded", False)


def test_prompts_are_not_shared_on_a_gpu_unless_it_is_asked_for() -> None:
    assert not usual_sharing("packed", on_gpu=True)
    assert usual_sharing("packed", on_gpu=False)


@pytest.mark.nightly
def test_two_processes_see_what_one_sees(tmp_path: Path) -> None:
    shape = Fresh(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
        max_position_embeddings=64,
    )  # fmt: skip
    make_fresh(tmp_path / "model", shape, torch.float32)
    convert(tmp_path / "model", tmp_path / "initial", Checkpoint.model_validate({"format": "dcp"}))
    runs.launch(2, shared_prompt_runs.__file__, tmp_path / "initial", tmp_path / "seen.json")
    together = json.loads((tmp_path / "seen.json").read_text())
    for share in (False, True):
        alone = shared_prompt_runs.seen_by(tmp_path / "initial", single_process(), share_prompts=share)
        for one, other in zip(alone, together, strict=True):
            assert other == pytest.approx(one, rel=2e-3, abs=2e-4)


def test_a_policy_in_bfloat16_is_asked_by_its_weights_in_float32() -> None:
    """Cast, a real model's two ways are tenths of a nat apart where a token is unlikely: rounding, and no reason to refuse it."""

    class Cast(Policy):
        def computed(self, *inputs: Any) -> Any:
            raise AssertionError("cast to bfloat16")

    require_sharing(Cast(Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval(), dtype=torch.bfloat16))
