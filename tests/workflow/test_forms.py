"""Tasks that do not fit the rest of an experiment are refused before any work."""

from pathlib import Path
from typing import Any

import pytest

from dagrpo.params.overlay import read_preset
from dagrpo.params.schema import parse
from dagrpo.tasks.registry import TASKS
from dagrpo.workflow.forms import require_fitting_tasks, require_single_turn

PRESETS = sorted((Path(__file__).parents[2] / "presets").glob("*.yaml"))


def _check(train: str, evaluate: str, **sections: Any) -> None:
    experiment = {"train": train, "evaluate": [evaluate], "tasks": sorted({train, evaluate})}
    require_fitting_tasks(parse({"experiment": experiment, **sections}))


def test_an_unknown_task_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match="`gsm8` is not a task: the nearest known one is `gsm8k`"):
        _check("gsm8", "gsm8k")


@pytest.mark.parametrize("task", ["gsm8k_tool", "gsm8k_feedback", "geo3k_tool"])
def test_an_evaluation_with_an_oracle_is_refused(task: str) -> None:
    with pytest.raises(ValueError, match=f"evaluate names {task}, which tells the policy whether its answer is right"):
        _check("gsm8k", task)


def test_a_python_interpreter_is_no_oracle() -> None:
    _check("dapo_tool", "aime_2024_tool")


def test_a_reward_for_tool_calls_needs_a_task_with_tools() -> None:
    with pytest.raises(ValueError, match=r"components.tool_calls.weight is 0.1, but gsm8k offers no tool to call"):
        _check("gsm8k", "gsm8k", reward={"components": {"tool_calls": {"weight": 0.1}}})
    _check("gsm8k_tool", "gsm8k", reward={"components": {"tool_calls": {"weight": 0.1}}})


@pytest.mark.parametrize(
    ("task", "needs"),
    [
        ("gsm8k_tool", "tools"),
        ("gsm8k_feedback", "interaction"),
        ("geo3k", "images"),
        ("geo3k_tool", "tools and images"),
    ],
)
def test_rollouts_of_more_than_one_turn_of_text_are_refused(task: str, needs: str) -> None:
    with pytest.raises(ValueError, match=f"{task} needs rollouts with {needs}, .* `snakemake prepared`"):
        require_single_turn(task)


@pytest.mark.parametrize("task", ["arithmetic", "gsm8k", "gsm8k_sft", "dapo", "aime_2025"])
def test_single_turn_tasks_are_not(task: str) -> None:
    require_single_turn(task)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_the_tasks_of_every_preset_fit(preset: Path) -> None:
    require_fitting_tasks(read_preset(preset))


def test_every_task_is_used_by_a_preset() -> None:
    used = {task for preset in PRESETS for task in read_preset(preset).experiment.tasks}
    assert set(TASKS.own_names()) - used == set()
