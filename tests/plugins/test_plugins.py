"""Plug-ins by name, entry point and import path; mistakes in one are named with file and line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagrpo.algorithms import advantages, losses
from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.losses import LOSSES
from dagrpo.core import plugins
from dagrpo.core.errors import Terminated, UserError
from dagrpo.core.plugins import Plugins
from dagrpo.core.types import Row
from dagrpo.data.task import TASKS, get_task
from dagrpo.rewards.components import COMPONENTS, Component, Weighted, value_of
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo_answers.judging import judge_fast
from dagrpo_answers.verifier import Verifier


def test_each_module_of_the_folder_offers_a_plug_in() -> None:
    assert {"grpo", "rloo", "remax"} <= set(ADVANTAGES.own_names())
    assert {"ppo_clip", "gspo", "dppo"} <= set(LOSSES.own_names())
    for known, package in ((ADVANTAGES, advantages), (LOSSES, losses)):
        files = {path.stem for path in Path(package.__path__[0]).glob("[a-z]*.py")}
        assert {known.module_of(name).rpartition(".")[2] for name in known.own_names()} == files
        assert all(known.get(name) for name in known.own_names())


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    assert LOSSES.module_of("gspo") == "dagrpo.algorithms.losses.sequence_ratios"
    with pytest.raises(UserError, match=r"`gsp` is not a loss: the nearest known one is `gspo`; correct algorithm"):
        LOSSES.get("gsp")


def test_a_mistake_of_a_plug_ins_module_has_its_file_and_line_and_a_stop_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stopped_lab.py").write_text("from dagrpo.core.errors import Terminated\nraise Terminated(143)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Terminated):
        LOSSES.get("stopped_lab:LOSS")
    module = tmp_path / "divided_lab.py"
    module.write_text("half = 1\nLOSS = half / 0\n")
    with pytest.raises(UserError, match=rf"\(ZeroDivisionError: division by zero, {module}, line 2\)"):
        LOSSES.get("divided_lab:LOSS")


@pytest.mark.usefixtures("_lab")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "no_such_lab.losses:tilted",
            r"cannot be imported|that can be imported \(ModuleNotFoundError: No module named 'no_such_lab'\)",
        ),
        (
            "example_lab.losses.tilted",
            r"not a loss: an import path has `:` before the object, as in `example_lab.losses:tilted`; correct",
        ),
        ("example_lab.losses:tiltd", r"example_lab.losses has no `tiltd`"),
        ("example_lab.losses:policy_gradient", r"not a loss but a function: .* make it a Loss of dagrpo.algorithms"),
        ("example_lab.advantages:best", r"not a loss but an Advantage"),
    ],
)
def test_an_import_path_that_leads_to_no_plug_in_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        LOSSES.get(name)
    assert "\n" not in str(caught.value)


def test_an_entry_point_is_a_name_like_any_other(installed_lab: Path) -> None:
    installed_lab.write_text(
        "[dagrpo.losses]\ntilted = example_lab.losses:tilted\n[dagrpo.tasks]\neven = example_lab.tasks:parity\n"
    )
    assert LOSSES.names() == [*LOSSES.own_names(), "tilted"]
    assert LOSSES.get("tilted").aggregation == "seq-mean-token-sum"
    assert LOSSES.module_of("tilted") == "example_lab.losses"
    assert get_task("even").name == "even"
    installed_lab.write_text("[dagrpo.losses]\ngspo = example_lab.losses:tilted\n")
    plugins._entry_points.cache_clear()
    with pytest.raises(
        UserError, match=r"two plug-ins offer the loss `gspo`, dagrpo\.algorithms\.losses\.sequence_ratios and"
    ):
        LOSSES.get("gspo")


@pytest.mark.parametrize(
    "program",
    [
        "from dagrpo.rewards.verifiers import VERIFIERS; VERIFIERS.get('exact_match')",
        "from dagrpo.config.schema import parse; parse({'algorithm': {'loss': {'name': 'gspo'}}, 'reward': {'verifier': 'math'}})",
    ],
)
def test_getting_one_plug_in_imports_no_other_and_nothing_heavy(program: str) -> None:
    heavy = ("dagrpo_answers.verifiers.countdown", "torch", "numpy", "sympy", "math_verify", "transformers")
    shown = f"import sys; {program}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
    with pytest.raises(UserError, match=rf"test_plugins\.py, line \d+: a row's `{field}` is .*, not "):
        Row(**(good | {field: value}))


@pytest.mark.parametrize("value", [None, "1.0", float("nan")])
def test_a_reward_that_is_no_finite_number(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component(config=Weighted, function=lambda graded, config: value)
    monkeypatch.setattr(COMPONENTS, "get", lambda name: component)
    with pytest.raises(
        UserError, match=r"component own \(.*test_plugins\.py, line \d+\) returned .*, not a finite number"
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
