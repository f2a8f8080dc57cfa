"""Mistakes in a plug-in of one's own are named with its file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagrpo.algorithms.losses import LOSSES
from dagrpo.core.errors import UserError
from dagrpo.core.plugins import Plugins
from dagrpo.core.types import Row
from dagrpo.data.task import TASKS
from dagrpo.rewards.components import COMPONENTS, Component, Weighted, value_of
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo_answers.judging import judge_fast
from dagrpo_answers.verifier import Verifier

VERIFIER = """from dagrpo_answers.verifier import Verifier

OWN = Verifier(name="own", extract={extract}, equal={equal}, formatted=bool, check={check})
"""
GOOD = {"extract": "lambda text, extractor: text", "equal": "lambda answer, truth: True", "check": "lambda truth: None"}


def _verifier(**changed: str) -> str:
    return VERIFIER.format(**(GOOD | changed))


@pytest.mark.parametrize(
    ("plugins", "name", "text", "fault"),
    [
        (
            VERIFIERS,
            ":OWN",
            _verifier(extract="lambda text: text"),
            r"`extract` \(.*mistaken_lab.py, line 3\) is not a function of \(text, extractor\)",
        ),
        (VERIFIERS, ":OWN", _verifier(check="None"), "`check` is None, not a function of"),
        (
            COMPONENTS,
            ":OWN",
            "from dagrpo.rewards.components import Component, Weighted\nOWN = Component(config=Weighted, function=lambda graded: 1.0)\n",
            r"`function` \(.*mistaken_lab.py, line 2\) is not a function of \(graded, config\)",
        ),
        (
            LOSSES,
            ":OWN",
            "from dagrpo.algorithms.losses import Loss\nOWN = Loss(config=object, function=lambda batch: batch)\n",
            r"`function` \(.*line 2\) is not a function of \(batch, config\)",
        ),
        (
            TASKS,
            ".OWN",
            "from dagrpo.data.task import Task\nOWN = Task(name='own', load=lambda params: None, verifier='gsm8k', tools='search')\n",
            r"`tools` is 'search', not a tuple of names: write \('search',\)",
        ),
    ],
)
def test_a_plug_in_that_does_not_fit(
    plugins: Plugins[Any], name: str, text: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken_lab.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mistaken_lab", raising=False)
    with pytest.raises(UserError, match=fault):
        plugins.get(f"mistaken_lab{name}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "What is 1 + 1?"),
        ("prompt", ({"role": "user", "content": 7},)),
        ("ground_truth", 7),
        ("images", (b"", "picture.png")),
        ("ability", 3),
    ],
)
def test_a_field_of_a_row_of_another_type_names_the_line_that_makes_the_row(field: str, value: object) -> None:
    good: dict[str, Any] = {
        "prompt": ({"role": "user", "content": "?"},),
        "question": "?",
        "answer": "7",
        "ground_truth": "7",
    }
    with pytest.raises(UserError, match=rf"test_mistakes\.py, line \d+: a row's `{field}` is .*, not "):
        Row(**(good | {field: value}))


@pytest.mark.parametrize("value", [None, "1.0", float("nan")])
def test_a_reward_that_is_no_finite_number(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component(config=Weighted, function=lambda graded, config: value)
    monkeypatch.setattr(COMPONENTS, "get", lambda name: component)
    with pytest.raises(
        UserError, match=r"component own \(.*test_mistakes\.py, line \d+\) returned .*, not a finite number"
    ):
        value_of("own", None, Weighted())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("extract", "equal", "fault"),
    [
        (lambda text, extractor: 7, lambda answer, truth: True, "`extract` .* returned 7, not a text or None"),
        (lambda text, extractor: text, lambda answer, truth: "yes", "`equal` .* returned 'yes', not True"),
    ],
)
def test_a_verifier_that_returns_something_else(
    extract: Callable[..., Any], equal: Callable[..., Any], fault: str
) -> None:
    verifier = Verifier(name="own", extract=extract, equal=equal, formatted=bool, check=lambda truth: None)
    with pytest.raises(UserError, match=fault):
        judge_fast(verifier, "7", "7", "strict", 0)
