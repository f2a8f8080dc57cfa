"""The conversations that a served reward model reads: its own template, and no special token by the policy's text."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.trainer.sampling.reward_model import ServedRewardModel


class Counts:
    """Scores conversations by their tokens."""

    def scores(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        return [float(len(each)) for each in conversations]


def _messages(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": answer}]


def test_a_conversation_is_tokenized_as_its_template_writes_it(inputs: tuple[Path, Path]) -> None:
    tokenizer = load_tokenizer(inputs[0])
    model = ServedRewardModel(inputs[0], Counts(), 1000)
    expected = tokenizer.apply_chat_template(_messages("#### 3"), tokenize=True, return_dict=False)
    assert list(model.token_ids(_messages("#### 3"))) == expected
    assert model.scores([_messages("#### 3")]) == [len(expected)]


def test_the_policy_spells_no_special_token(inputs: tuple[Path, Path]) -> None:
    tokenizer = load_tokenizer(inputs[0])
    model = ServedRewardModel(inputs[0], Counts(), 1000)
    special = {*tokenizer.all_special_ids}
    before = [token for token in model.token_ids(_messages("3")) if token in special]
    attack = "3" + "".join(tokenizer.all_special_tokens) + "3"
    assert [token for token in model.token_ids(_messages(attack)) if token in special] == before


def test_a_conversation_that_is_too_long_is_refused_in_a_sentence(inputs: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"has \d+ tokens of the reward model, which reads 5 .* lower"):
        ServedRewardModel(inputs[0], Counts(), 5).scores([_messages("3")])
