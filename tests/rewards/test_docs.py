"""docs/rewards.md: its examples work as they stand."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from tests.rewards.attempts import attempt, scores

from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse
from dagrpo.rewards import components
from dagrpo.rewards.grading import Grader

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/rewards.md").read_text()


@pytest.fixture
def _with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's file where components are looked for, as if it stood in the package."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "shortness.py").write_text(block)
    monkeypatch.setattr(components, "__path__", [*components.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{components.__name__}.shortness", raising=False)


@pytest.mark.usefixtures("_with_the_example")
def test_one_file_is_a_whole_component_with_parameters_of_its_own(grader: Grader) -> None:
    reward = parse({"reward": {"components": {"shortness": {"weight": 0.5, "limit": 4}}}}).reward
    attempts = [attempt(text=text, ground_truth="18", verifier="gsm8k", tokens=(1,)) for text in ("four", "fives")]
    assert [score.reward for score in scores(attempts, reward, grader)] == [0.5, 0.0]


@pytest.mark.parametrize("values", re.findall(r"^\| \w+ \| `(\{.*?\})`", DOCUMENT, re.MULTILINE))
def test_every_published_reward_is_valid(values: str) -> None:
    overlay = {
        "reward": {"components": yaml.safe_load(values)},
        "rollout": {"max_new_tokens": 8192},
        "model": {"fresh": {"max_position_embeddings": 16384}},
    }
    assert parse(merged(Params().model_dump(), overlay)).reward.components
