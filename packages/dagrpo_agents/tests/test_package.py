"""dagrpo finds the agents by entry points, takes their code for a stage's, and notices shared random numbers."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import mtrand

from dagrpo.config.schema import parse
from dagrpo.core import plugins
from dagrpo.core.errors import UserError
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.rollout.agents import AGENTS
from dagrpo_agents.environment import SharedRandom
from dagrpo_agents.serve.policy import call_together

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
    assert using == {"difficulty", "sample", "sample_kept", "train", "validate"}
    files = _of_the_package(code_files(programs, all_stages()["train"]))
    assert {"program.py", "gateway/server.py", "programs/service.py"} <= files
    assert not {"environment.py", "openenv.py", "verifiers.py"} & files
    assert not any(_of_the_package(code_files(own, stage)) for stage in all_stages().values())


def _of_the_package(files: list[str]) -> set[str]:
    return {file.removeprefix(FOLDER) for file in files if file.startswith(FOLDER)}


def test_each_call_is_made_while_the_others_run_and_results_keep_their_order() -> None:
    all_there = threading.Barrier(3, timeout=20)

    def call(number: int) -> int:
        all_there.wait()
        return number

    assert call_together([lambda: call(1), lambda: call(2), lambda: call(3)]) == [1, 2, 3]


def test_an_error_is_raised_while_another_call_still_waits() -> None:
    ready = threading.Event()

    def fails() -> bool:
        raise UserError("There is no room.")

    with pytest.raises(UserError, match="no room"):
        call_together([ready.wait, fails])
    ready.set()


GENERATORS = [np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64]


@pytest.fixture
def generator() -> Iterator[None]:
    """Puts numpy's own back."""
    before = mtrand.get_bit_generator()
    yield
    mtrand.set_bit_generator(before)


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.usefixtures("generator")
def test_a_draw_from_any_generator_is_told_and_a_look_is_not(
    kind: Callable[[int], np.random.BitGenerator], capsys: pytest.CaptureFixture[str]
) -> None:
    mtrand.set_bit_generator(kind(1))
    with SharedRandom("my_lab.envs:World").watched():
        np.random.default_rng(3).random()
    assert capsys.readouterr().err == ""
    with SharedRandom("my_lab.envs:World").watched():
        np.random.random(5)  # more than Philox keeps in hand
    assert "my_lab.envs:World draws random numbers" in " ".join(capsys.readouterr().err.split())


def test_code_that_draws_and_raises_is_told_of_too() -> None:
    shared = SharedRandom("my_lab.envs:Dice")

    def draw_and_raise() -> None:
        with shared.watched():
            random.random()
            raise KeyError

    with pytest.raises(KeyError):
        draw_and_raise()
    assert shared._has_warned
