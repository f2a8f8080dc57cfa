"""The component reward_model: conversations, normalisation and clipping, with a reward model that scores by length."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.rewards.attempts import attempt

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.rewards.config import Reward
from dagrpo.rewards.grading import Grader, grade


class Lengths:
    """Scores a conversation by the characters of its answer."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Sequence[Mapping[str, Any]]]] = []

    def scores(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
        self.asked.append(conversations)
        return [float(len(each[-1]["content"])) for each in conversations]


def test_scores_are_normalised_and_clipped_and_asked_for_in_one_batch() -> None:
    model = Lengths()
    keys = {"folder": "models/rm", "mean": 4.0, "scale": 2.0, "lowest": -1.5, "highest": 2.0, "weight": 0.5}
    reward = Reward.model_validate({"components": {"reward_model": keys}})
    texts = ["<think>abc", "<think>abcdef</think>abc", "abcd", "abcdef", "a" * 100]
    with Grader(1.0, processes=1, reward_model=model) as grader:
        graded = grade([attempt(text) for text in texts], reward, grader)
        metrics = grader.metrics(reward)
        assert grader.metrics(reward) == dict.fromkeys(metrics, 0.0)
    assert [each.score.components["reward_model"] for each in graded] == [-1.5, -0.5, 0.0, 1.0, 2.0]
    assert [each.score.reward for each in graded] == [-0.75, -0.25, 0.0, 0.5, 1.0]
    shares = {"clipped_fraction": 0.25, "without_answer_fraction": 0.2}  # of those that the model scored; of all
    assert metrics == {f"reward/reward_model_{name}": share for name, share in shares.items()}
    (batch,) = model.asked
    assert list(batch[0]) == [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": "abc"}]


def test_without_an_answer_no_model_is_asked() -> None:
    model, reward = Lengths(), Reward.model_validate({"components": {"reward_model": {"folder": "rm", "lowest": -3.0}}})
    with Grader(1.0, processes=1, reward_model=model) as grader:
        graded = grade([attempt(text) for text in ("", " ", "abc</think>\n")], reward, grader)
    assert [each.score.reward for each in graded] == [-3.0] * 3
    assert model.asked == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"folder": ""}, "folder is empty: name the checkpoint"),
        ({"lowest": 3.0, "highest": 3.0}, "let lowest be smaller"),
        ({"scale": 0.0}, "greater than 0"),
    ],
)
def test_parameters_that_cannot_work_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        Params.model_validate({"reward": {"components": {"reward_model": keys}}})


def test_an_experiment_does_not_score_with_its_own_outputs() -> None:
    component = {"reward_model": {"folder": "results/mine/runs/seed_0/exported"}}
    with pytest.raises((UserError, ValueError), match="an output of this experiment"):
        Params.model_validate({"experiment": {"name": "mine"}, "reward": {"components": component}})
    params = Params.model_validate({"experiment": {"name": "another"}, "reward": {"components": component}})
    assert params.reward.files == ["results/mine/runs/seed_0/exported/manifest.json"]
