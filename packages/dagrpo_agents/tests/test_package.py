"""dagrpo finds the agents by entry points, says what to install without them, and takes their code for a stage's."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.schema import parse
from dagrpo.core import plugins
from dagrpo.core.errors import UserError
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.rollout.agents import AGENTS

NAMES = ["environment", "openenv", "program", "verifiers"]
FOLDER = "packages/dagrpo_agents/src/dagrpo_agents/"


def test_they_are_agents_beside_the_one_that_is_built_in() -> None:
    assert AGENTS.own_names() == sorted([*NAMES, "tool_agent"])


@pytest.mark.parametrize(
    "values",
    [
        *({"rollout": {"agent": {"name": name}}} for name in NAMES),
        {"rollout": {"chat": {"name": "renderers", "family": "kimi-k2"}}},
        {"rollout": {"tools": {"mcp": {"url": "http://127.0.0.1:1"}}}},
        {"experiment": {"train": "worlds", "evaluate": ["worlds"], "tasks": ["worlds"]}},
        {"experiment": {"train": "verifiers", "evaluate": ["verifiers"], "tasks": ["verifiers"]}},
    ],
)
def test_without_the_package_they_are_refused_with_what_to_install(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_entry_points", lambda: ())
    with pytest.raises(UserError, match=r"pip install 'dagrpo\[(agents|renderers|toys)\]'"):
        parse_with_tasks(values, "params.yaml")


def test_their_code_is_that_of_the_stages_that_use_them_and_of_no_other() -> None:
    agent = {"name": "program", "command": [sys.executable, str(Path(__file__))]}
    programs, own = parse({"rollout": {"agent": agent}}), parse({})
    using = {name for name, stage in all_stages().items() if _of_the_package(code_files(programs, stage))}
    assert using == {"difficulty", "sample", "train"}
    files = _of_the_package(code_files(programs, all_stages()["train"]))
    assert {"program.py", "gateway/server.py", "programs/service.py"} <= files
    assert not {"environment.py", "openenv.py", "verifiers.py"} & files
    assert not any(_of_the_package(code_files(own, stage)) for stage in all_stages().values())


def _of_the_package(files: list[str]) -> set[str]:
    return {file.removeprefix(FOLDER) for file in files if file.startswith(FOLDER)}
