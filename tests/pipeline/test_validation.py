"""Tasks that do not fit the rest of an experiment are refused before any work."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.data.task import TASKS
from dagrpo.pipeline.validation import parse_with_tasks, require_fitting_tasks

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "presets/experiments").glob("*.yaml"))


def _check(train: str, evaluate: str, **sections: Any) -> None:
    experiment = {"train": train, "evaluate": [evaluate], "tasks": sorted({train, evaluate})}
    require_fitting_tasks(parse({"experiment": experiment, **sections}))


def test_an_unknown_task_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match="`gsm8` is not a task: the nearest known one is `gsm8k`"):
        _check("gsm8", "gsm8k")


def test_an_unknown_task_is_told_together_with_the_other_mistakes() -> None:
    values = {"experiment": {"train": "gsm9k", "evaluate": ["arithmetic"]}, "training": {"setps": 3}}
    with pytest.raises(UserError) as told:
        parse_with_tasks(values)
    task, tasks, key = str(told.value).splitlines()
    assert task.startswith(
        "params.yaml: `gsm9k` is not a task: the nearest known one is `gsm8k`; correct experiment.train"
    )
    assert tasks == (
        "params.yaml: experiment.tasks must list exactly train and evaluate: set it to ['arithmetic', 'gsm8k']."
    )
    assert key == "params.yaml: unknown key `training.setps`: the nearest known key is `training.steps`."


def test_a_task_that_is_listed_beside_its_misspelling_is_not_called_listed_twice() -> None:
    with pytest.raises(UserError) as told:
        parse_with_tasks({"experiment": {"train": "gsm9k", "evaluate": ["gsm8k"], "tasks": ["gsm8k", "gsm9k"]}})
    assert len(str(told.value).splitlines()) == 1


def test_two_unknown_tasks_are_told_at_once() -> None:
    with pytest.raises(UserError, match=r"`aime_2024x` is not a task.*\n`gsm9k` is not a task"):
        _check("gsm9k", "aime_2024x")


@pytest.mark.parametrize("experiment", [None, "gsm8k", {"train": 3, "evaluate": "gsm8k", "tasks": [[]]}])
def test_what_is_no_list_of_tasks_is_refused_by_the_schema(experiment: object) -> None:
    with pytest.raises(UserError, match=r"^params\.yaml: `experiment"):
        parse_with_tasks({"experiment": experiment})


@pytest.mark.parametrize("task", ["gsm8k_tool", "gsm8k_feedback", "geo3k_tool"])
def test_an_evaluation_with_an_oracle_is_refused(task: str) -> None:
    with pytest.raises(ValueError, match=f"evaluate names {task}, which tells the policy whether its answer is right"):
        _check("gsm8k", task)


@pytest.mark.parametrize("task", ["gsm8k_tool", "gsm8k_feedback"])
def test_an_oracle_is_evaluated_when_that_is_asked_for(task: str) -> None:
    _check("gsm8k", task, evaluation={"oracles": True})


def test_a_python_interpreter_is_no_oracle() -> None:
    _check("dapo_tool", "aime_2024_tool")


def test_an_attempt_of_one_turn_at_a_task_with_tools_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"rollout.agent.max_turns is 1, and arithmetic_tool offers tools: .* 2 or more"
    ):
        _check("arithmetic_tool", "arithmetic", rollout={"agent": {"name": "tool_agent", "max_turns": 1}})


def test_an_environment_that_is_none_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match=r"`my_lab:Nothing` cannot be imported"):
        _check("arithmetic", "arithmetic", rollout={"agent": {"name": "environment", "environment": "my_lab:Nothing"}})


def test_an_environment_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"^rollout\.agent\.environment is empty: name the class, such as my_lab"):
        _check("arithmetic", "arithmetic", rollout={"agent": {"name": "environment"}})


def test_a_program_that_cannot_be_started_is_refused_before_any_work() -> None:
    with pytest.raises(UserError, match=r"^rollout\.agent\.command: there is no program `pyhton`"):
        _check("arithmetic", "arithmetic", rollout={"agent": {"name": "program", "command": ["pyhton", "agent.py"]}})


@pytest.mark.parametrize(
    ("tools", "function", "told"),
    [
        (("python_functions",), "my_lab.nowhere:add", r"`my_lab.nowhere:add` cannot be imported"),
        (("python_functions",), "json:dumps", r"dumps cannot be a tool: give its argument obj a type"),
        (
            ("pythonfunctions",),
            "json:dumps",
            r"`pythonfunctions` is not a tool: .*; correct the tools of the task own_tasks.capitals",
        ),
    ],
    ids=["not there", "not described", "misspelt"],
)
def test_a_tool_that_cannot_work_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...], function: str, told: str
) -> None:
    (tmp_path / "own_tasks.py").write_text(
        "from dataclasses import replace\nfrom dagrpo.data.task import get_task\n"
        f"capitals = replace(get_task('arithmetic'), name='capitals', tools={tools!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_tasks", raising=False)
    functions = {"python_functions": {"functions": [function]}}
    with pytest.raises(UserError, match=told):
        _check("own_tasks.capitals", "own_tasks.capitals", rollout={"tools": functions})


def test_a_task_without_right_answers_is_neither_evaluated_nor_rewarded_by_them() -> None:
    model = {"reward_model": {"folder": "models/reward"}, "accuracy": {"weight": 0.0}}
    _check("hh_rlhf", "ifeval", reward={"components": model})
    with pytest.raises(UserError, match=r"experiment\.evaluate names hh_rlhf, whose problems have no right answers"):
        _check("hh_rlhf", "hh_rlhf", reward={"components": model})
    with pytest.raises(UserError, match=r"accuracy, and hh_rlhf has no right answers: set its weight to 0\.0"):
        _check("hh_rlhf", "ifeval")


def test_passed_tests_needs_a_verifier_that_gives_shares() -> None:
    shares: dict[str, Any] = {"components": {"accuracy": {}, "passed_tests": {}}}
    _check("ifeval", "ifeval", reward=shares)
    with pytest.raises(UserError, match=r"passed_tests\.weight is 1\.0, but the verifier gsm8k runs no tests"):
        _check("arithmetic", "arithmetic", reward=shares)


@pytest.mark.parametrize(("verifier", "own"), [("ifeval", "ifeval"), ("choice", "mmlu_pro")])
def test_a_verifier_needs_a_task_whose_ground_truths_it_reads(verifier: str, own: str) -> None:
    with pytest.raises(
        UserError, match=rf"reward\.verifier is {verifier}, which cannot read the ground truths of arithm"
    ):
        _check("arithmetic", "arithmetic", reward={"verifier": verifier})
    _check(own, own, reward={"verifier": verifier})
    _check("arithmetic", "arithmetic", reward={"verifier": "math"})


def test_a_reward_for_tool_calls_needs_a_task_with_tools() -> None:
    with pytest.raises(ValueError, match=r"components.tool_calls.weight is 0.1, but gsm8k offers no tool to call"):
        _check("gsm8k", "gsm8k", reward={"components": {"tool_calls": {"weight": 0.1}}})
    _check("gsm8k_tool", "gsm8k", reward={"components": {"tool_calls": {"weight": 0.1}}})


@pytest.mark.parametrize(
    ("reward", "key"),
    [
        ({"components": {"reported": {}}}, r"reward\.components\.reported"),
        ({"verifier": "reported"}, r"reward\.verifier"),
    ],
)
def test_a_reward_that_is_reported_needs_an_agent_that_reports(reward: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"^{key} takes .*rollout\.agent tool_agent never reports anything"):
        _check("arithmetic", "arithmetic", reward=reward)
    agent = {"name": "program", "command": [sys.executable, "-c", ""]}
    _check("arithmetic", "arithmetic", reward=reward, rollout={"agent": agent})


def test_a_class_that_says_nothing_of_its_worth_cannot_be_rewarded_for_it() -> None:
    agent: dict[str, Any] = {"name": "environment", "environment": "packages.dagrpo_agents.tests.worlds:Unrewarded"}
    reward: dict[str, Any] = {"components": {"reported": {}}}
    with pytest.raises(UserError, match=r"rollout\.agent environment never reports anything: .*reward_functions"):
        _check("arithmetic", "arithmetic", reward=reward, rollout={"agent": agent})
    agent["reward_functions"] = ["packages.dagrpo_agents.tests.worlds:score"]
    _check("arithmetic", "arithmetic", reward=reward, rollout={"agent": agent})


@pytest.mark.parametrize(
    "agent", [{"name": "program", "command": [sys.executable, "-c", ""]}, {"name": "verifiers", "taskset": "one"}]
)
def test_a_program_cannot_be_shown_pictures(agent: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match=rf"rollout\.agent is {agent['name']}, .* geo3k has prompts with pictures: take the"
    ):
        _check("geo3k", "geo3k", rollout={"agent": agent})


def test_a_chat_format_that_writes_text_alone_is_refused_for_pictures() -> None:
    chat = {"name": "renderers", "family": "qwen3-vl"}
    model = {"fresh": {"vision": {"family": "qwen3_vl"}}}
    with pytest.raises(
        UserError,
        match=r"rollout\.chat is renderers, .* geo3k has prompts with pictures: set rollout\.chat to \{name: template\}",
    ):
        _check("geo3k", "geo3k", rollout={"chat": chat}, model=model)
    _check("arithmetic", "arithmetic", rollout={"chat": chat}, model=model)


def test_a_reported_reward_of_no_weight_needs_no_agent_that_reports() -> None:
    _check("arithmetic", "arithmetic", reward={"components": {"accuracy": {}, "reported": {"weight": 0.0}}})


def _with_pictures(task: str, **model: Any) -> None:
    evaluation = {"oracles": True}
    _check(task, task, model=model, training={"max_prompt_tokens": 200}, evaluation=evaluation)


@pytest.mark.parametrize("task", ["geo3k", "geo3k_tool"])
def test_a_model_of_text_is_refused_for_a_task_with_pictures(task: str) -> None:
    for source in ({"source": "fresh"}, {"source": "gguf", "gguf": "a.gguf"}):
        with pytest.raises(ValueError, match=rf"{task} has prompts with pictures, and model\.source .* of text alone"):
            _with_pictures(task, **source)


def test_a_picture_of_full_size_must_have_room_in_a_prompt() -> None:
    fresh = {"max_position_embeddings": 1024, "vision": {"family": "qwen3_vl", "patch_size": 10}}
    _with_pictures("geo3k", fresh=fresh, max_pixels=400 * 200)
    with pytest.raises(ValueError, match=r"may take 201 tokens, and training\.max_prompt_tokens is 200: lower model\."):
        _with_pictures("geo3k", fresh=fresh, max_pixels=400 * 201)


def test_a_picture_that_is_evaluated_alone_needs_no_room_in_the_prompts_of_training() -> None:
    fresh = {"max_position_embeddings": 1024, "vision": {"family": "qwen3_vl", "patch_size": 10}}
    _check("arithmetic", "shapes", model={"fresh": fresh, "max_pixels": 400 * 201})


def test_patches_that_sglang_does_not_read_are_refused() -> None:
    vision = {"family": "qwen2_5_vl", "patch_size": 14}
    _with_pictures("geo3k", fresh={"vision": vision})
    with pytest.raises(
        ValueError, match=r"patch_size is 8, and SGLang reads a qwen2_5_vl with patches of 14 alone: set it"
    ):
        _with_pictures("geo3k", fresh={"vision": vision | {"patch_size": 8}})
    with pytest.raises(ValueError, match="patch_size is 8"):  # a task of text is served by the same model
        _check("arithmetic", "arithmetic", model={"fresh": {"vision": vision | {"patch_size": 8}}})


def test_a_model_of_the_hub_may_take_pictures() -> None:
    _with_pictures("geo3k", source="hub", repository="Qwen/Qwen2.5-VL-3B-Instruct", revision="0" * 40)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_tasks_of_every_shipped_experiment_fit(experiment: str) -> None:
    params = composed([experiment], ROOT / "presets")
    require_fitting_tasks(params)


def test_every_task_that_can_run_is_used_by_a_shipped_preset() -> None:
    presets = [[name] for name in EXPERIMENTS]
    presets += [["smollm2_135m", path.stem] for path in (ROOT / "presets/tasks").glob("*.yaml")]
    used = {task for names in presets for task in composed(names, ROOT / "presets").experiment.tasks}
    used.add("verifiers")  # whose taskset is the user's own
    assert {name for name in TASKS.own_names() if not TASKS.get(name).images} - used == set()


def test_a_task_with_a_colon_in_its_import_path_is_not_taken_for_a_known_one() -> None:
    with pytest.raises(UserError, match=r"has `\.` before the object, as in `vowel_task\.vowels`") as caught:
        parse_with_tasks({"experiment": {"train": "vowel_task:vowels"}}, "params.yaml")
    assert "nearest" not in str(caught.value)
