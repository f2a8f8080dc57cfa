"""Tasks that do not fit the rest of an experiment are refused before any work."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.validation import parse_with_tasks, require_fitting_tasks


def _check(train: str, evaluate: str, **sections: Any) -> None:
    experiment = {"train": train, "evaluate": [evaluate], "tasks": sorted({train, evaluate})}
    require_fitting_tasks(parse({"experiment": experiment, **sections}))


PROGRAM: dict[str, Any] = {"name": "program", "command": [sys.executable, "-c", ""]}
SHARES: dict[str, Any] = {"components": {"accuracy": {}, "passed_tests": {}}}
TEXT = {"name": "renderers", "family": "qwen3-vl"}  # a chat format that writes text only
PICTURES = {"fresh": {"vision": {"family": "qwen3_vl"}}}
WIDE = {"max_position_embeddings": 1024, "vision": {"family": "qwen3_vl", "patch_size": 10}}


def _agent(**values: Any) -> dict[str, Any]:
    return {"rollout": {"agent": values}}


@pytest.mark.parametrize(
    ("train", "evaluate", "sections", "told"),
    [
        ("gsm8", "gsm8k", {}, "gsm8k"),
        ("gsm8k", "gsm8k_tool", {}, "evaluate"),
        ("gsm8k", "gsm8k_feedback", {}, "evaluate"),
        ("gsm8k", "geo3k_tool", {}, "evaluate"),
        ("arithmetic_tool", "arithmetic", _agent(name="tool_agent", max_turns=1), "max_turns"),
        ("arithmetic", "arithmetic", _agent(name="environment", environment="my_lab:Nothing"), "my_lab:Nothing"),
        ("arithmetic", "arithmetic", _agent(name="environment"), r"rollout\.agent\.environment"),
        ("arithmetic", "arithmetic", _agent(name="program", command=["pyhton", "agent.py"]), "pyhton"),
        ("gsm8k", "gsm8k", {"reward": {"components": {"tool_calls": {"weight": 0.1}}}}, "tool_calls"),
        ("arithmetic", "arithmetic", {"reward": SHARES}, "passed_tests"),
        ("arithmetic", "arithmetic", {"reward": {"components": {"reported": {}}}}, "components.reported"),
        ("arithmetic", "arithmetic", {"reward": {"verifier": "reported"}}, "reward.verifier"),
        ("geo3k", "geo3k", _agent(**PROGRAM), "geo3k has prompts with pictures"),
        ("geo3k", "geo3k", _agent(name="verifiers", taskset="one"), "geo3k has prompts with pictures"),
        ("geo3k", "geo3k", {"rollout": {"chat": TEXT}, "model": PICTURES}, r"rollout\.chat"),
        ("geo3k", "geo3k", {"model": {"source": "fresh"}}, r"model\.source"),
        ("geo3k", "geo3k", {"model": {"source": "gguf", "gguf": "a.gguf"}}, r"model\.source"),
    ],
)
def test_what_does_not_fit_a_task_is_refused_and_named(
    train: str, evaluate: str, sections: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        _check(train, evaluate, **sections)


@pytest.mark.parametrize(
    ("train", "evaluate", "sections"),
    [
        ("gsm8k", "gsm8k_tool", {"evaluation": {"oracles": True}}),
        ("gsm8k", "gsm8k_feedback", {"evaluation": {"oracles": True}}),
        ("dapo_tool", "aime_2024_tool", {}),  # a Python interpreter is no oracle
        ("gsm8k_tool", "gsm8k", {"reward": {"components": {"tool_calls": {"weight": 0.1}}}}),
        ("ifeval", "ifeval", {"reward": SHARES}),
        ("arithmetic", "arithmetic", {"reward": {"verifier": "reported"}, **_agent(**PROGRAM)}),
        ("arithmetic", "arithmetic", {"reward": {"components": {"accuracy": {}, "reported": {"weight": 0.0}}}}),
        ("arithmetic", "arithmetic", {"rollout": {"chat": TEXT}, "model": PICTURES}),
        ("arithmetic", "shapes", {"model": {"fresh": WIDE, "max_pixels": 400 * 201}}),  # no prompt of training
        ("geo3k", "geo3k", {"model": {"source": "hub", "repository": "a/b", "revision": "0" * 40}}),
    ],
)
def test_what_fits_a_task_is_taken(train: str, evaluate: str, sections: dict[str, Any]) -> None:
    _check(train, evaluate, **{"training": {"max_prompt_tokens": 200}, **sections})


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


@pytest.mark.parametrize(
    "experiment",
    [
        {"train": "gsm9k", "evaluate": ["gsm8k"], "tasks": ["gsm8k", "gsm9k"]},
        {"train": "no_such_module.TASK", "evaluate": ["no_such_module.TASK"], "tasks": ["no_such_module.TASK"]},
    ],
    ids=["listed beside its misspelling", "an import path that fails"],
)
def test_an_unknown_task_is_one_sentence(experiment: dict[str, object]) -> None:
    with pytest.raises(UserError) as told:
        parse_with_tasks({"experiment": experiment})
    assert len(str(told.value).splitlines()) == 1


def test_two_unknown_tasks_are_told_at_once() -> None:
    with pytest.raises(UserError, match=r"`aime_2024x` is not a task.*\n`gsm9k` is not a task"):
        _check("gsm9k", "aime_2024x")


@pytest.mark.parametrize("experiment", [None, "gsm8k", {"train": 3, "evaluate": "gsm8k", "tasks": [[]]}])
def test_what_is_no_list_of_tasks_is_refused_by_the_schema(experiment: object) -> None:
    with pytest.raises(UserError, match=r"^params\.yaml: `experiment"):
        parse_with_tasks({"experiment": experiment})


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


@pytest.mark.parametrize(("verifier", "own"), [("ifeval", "ifeval"), ("choice", "mmlu_pro")])
def test_a_verifier_needs_a_task_whose_ground_truths_it_reads(verifier: str, own: str) -> None:
    with pytest.raises(
        UserError, match=rf"reward\.verifier is {verifier}, which cannot read the ground truths of arithm"
    ):
        _check("arithmetic", "arithmetic", reward={"verifier": verifier})
    _check(own, own, reward={"verifier": verifier})
    _check("arithmetic", "arithmetic", reward={"verifier": "math"})


def test_a_class_that_says_nothing_of_its_worth_cannot_be_rewarded_for_it() -> None:
    agent: dict[str, Any] = {"name": "environment", "environment": "packages.dagrpo_agents.tests.worlds:Unrewarded"}
    reward: dict[str, Any] = {"components": {"reported": {}}}
    with pytest.raises(UserError, match=r"rollout\.agent environment never reports anything: .*reward_functions"):
        _check("arithmetic", "arithmetic", reward=reward, rollout={"agent": agent})
    agent["reward_functions"] = ["packages.dagrpo_agents.tests.worlds:score"]
    _check("arithmetic", "arithmetic", reward=reward, rollout={"agent": agent})


def _with_pictures(task: str, **model: Any) -> None:
    evaluation = {"oracles": True}
    _check(task, task, model=model, training={"max_prompt_tokens": 200}, evaluation=evaluation)


def test_a_picture_of_full_size_must_have_room_in_a_prompt() -> None:
    fresh = {"max_position_embeddings": 1024, "vision": {"family": "qwen3_vl", "patch_size": 10}}
    _with_pictures("geo3k", fresh=fresh, max_pixels=400 * 200)
    with pytest.raises(ValueError, match=r"may take 201 tokens, and training\.max_prompt_tokens is 200: lower model\."):
        _with_pictures("geo3k", fresh=fresh, max_pixels=400 * 201)


def test_patches_that_sglang_does_not_read_are_refused() -> None:
    vision = {"family": "qwen2_5_vl", "patch_size": 14}
    _with_pictures("geo3k", fresh={"vision": vision})
    with pytest.raises(
        ValueError, match=r"patch_size is 8, and SGLang reads a qwen2_5_vl with patches of 14 alone: set it"
    ):
        _with_pictures("geo3k", fresh={"vision": vision | {"patch_size": 8}})
    with pytest.raises(ValueError, match="patch_size is 8"):  # a task of text is served by the same model
        _check("arithmetic", "arithmetic", model={"fresh": {"vision": vision | {"patch_size": 8}}})


def test_a_task_with_a_colon_in_its_import_path_is_not_taken_for_a_known_one() -> None:
    with pytest.raises(UserError, match=r"has `\.` before the object, as in `vowel_task\.vowels`") as caught:
        parse_with_tasks({"experiment": {"train": "vowel_task:vowels"}}, "params.yaml")
    assert "nearest" not in str(caught.value)
