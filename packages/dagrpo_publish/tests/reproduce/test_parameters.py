"""Parameters of a crate select no code, command, path or server that is not allowed here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.overlay import merged, with_keys
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.identity import code_digests
from dagrpo.utils.files import sha256_of
from dagrpo_publish.crate.reading import Crate, Recorded
from dagrpo_publish.reproduce.parameters import parameters

PLACE = Path("their.crate")
COMPONENT = '''"""A reward."""
from pathlib import Path

from dagrpo.rewards.components import Component, Weighted

Path("imported").touch()
digits = Component(config=Weighted, function=lambda graded, config: 0.0, limits=lambda config: (0.0, 1.0))
'''


def _crate(changes: dict[str, Any], code: dict[str, str] | None = None, name: str = "theirs") -> Crate:
    """Return a crate in which one stage has read everything."""
    values = merged(Params().model_dump(), changes)
    runtime = values.pop("runtime")
    if "name" not in changes.get("experiment", {}):
        values["experiment"].pop("name")
    made: dict[str, Any] = {"inputs": {}, "outputs": {"a": "1" * 64}}
    record = Recorded(stage="train", experiment=name, params=values, runtime=runtime, code="0" * 64, **made)
    return Crate(experiment=name, records=(record,), code={"train": code or {}}, scores={})


def test_the_parameters_are_the_crates_under_a_name_of_their_own() -> None:
    params = parameters(_crate({"training": {"steps": 7}}), PLACE, Params(), ())
    assert params.training.steps == 7
    assert params.experiment.name == "theirs~reproduced"
    assert not params.runtime.reuse
    again = parameters(_crate({}, name="theirs~abc"), PLACE, Params(), ["training.steps=9"])
    assert (again.experiment.name, again.training.steps) == ("theirs~reproduced", 9)
    with pytest.raises(UserError, match="write KEY=VALUE"):
        parameters(_crate({}), PLACE, Params(), ["training.steps"])


def test_what_a_machine_alone_knows_is_of_this_one() -> None:
    engine = {"nodes": 4, "nodes_per_server": 2}
    runtime = {"engine": engine, "nodes": 2, "address": "0.0.0.0", "reward_model": {"servers": ["http://them:2"]}}
    theirs: dict[str, Any] = {"data": {"mirror": "/their/mirror"}, "runtime": runtime}
    here = parse({"data": {"mirror": "my/mirror"}})
    params = parameters(_crate(theirs), PLACE, here, ())
    assert params.data.mirror == "my/mirror"
    assert (params.runtime.engine.nodes, params.runtime.engine.nodes_per_server) == (0, 1)
    assert params.runtime.reward_model.servers == []
    assert (params.runtime.nodes, params.runtime.address) == (here.runtime.nodes, here.runtime.address)


AGENT = "rollout.agent"
VERIFIERS = {"name": "verifiers", "taskset": "a.b"}
ELSEWHERE = "a place of another machine"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (AGENT, {"name": "program", "command": ["rm", "-rf", "."]}, r"a program .rollout\.agent\.command"),
        (AGENT, {"name": "program", "keep_variables": ["HF_TOKEN"]}, r"a program .rollout\.agent\.keep_variables"),
        ("training.backend", {"name": "verl", "settings": {"trust": True}}, r"a program .training\.backend\.settings"),
        ("rollout.tools.search.url", "http://them", ELSEWHERE),
        ("model", {"source": "gguf", "gguf": "/etc/passwd"}, ELSEWHERE),
        ("data.pass_rates", "a/../../b", ELSEWHERE),
        ("data.pass_rates", "~/b c", ELSEWHERE),
        (AGENT, {"name": "openenv", "address": "://them:80"}, ELSEWHERE),
        (AGENT, VERIFIERS | {"environment": ".venv"}, "to which the run would write"),
        (AGENT, VERIFIERS | {"environment": "their.crate/a:b"}, "to which the run would write"),
        ("reward.components.judge.answers", "src/mine.py", "to which the run would write"),
        (AGENT, VERIFIERS | {"lock": "their.crate/a:b.lock"}, "from which the run would install packages"),
        (AGENT, VERIFIERS | {"harness": "theirs"}, "which would run beside the taskset"),
        (AGENT, VERIFIERS | {"taskset": ":x"}, "names code of its author"),
        ("training.setps", 1, "unknown key `training.setps`"),
        ("experiment.name", "other", "since the stages ran with different ones"),
        ("data", 3, "`data` is 3: it is a section"),
        ("runtime.engine", 3, "runtime.engine is 3"),
    ],
)
def test_what_leads_out_is_refused(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parameters(_crate(with_keys({}, {key: value})), PLACE, Params(), ())


Named = Callable[[str], dict[str, Any]]
KINDS: dict[str, Named] = {
    "reward": lambda path: {"reward": {"components": {path: {}}}},
    "loss": lambda path: {"algorithm": {"loss": {"name": path}}},
    "engine": lambda path: {"runtime": {"engine": {"name": path}}},
    "task": lambda path: {
        "experiment": {"train": path.replace(":", "."), "tasks": [path.replace(":", "."), "arithmetic"]}
    },
    "environment": lambda path: {"rollout": {"agent": {"name": "environment", "environment": path}}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["their_lab_xyz:digits", "antigravity:fly", "dagrpo.cli.clean:remove_override_runs"])
def test_code_that_is_not_ones_own_is_refused_before_it_is_imported(kind: str, path: str) -> None:
    with pytest.raises(UserError, match="names code of its author"):
        parameters(_crate(KINDS[kind](path)), PLACE, Params(), ())


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder, which leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "lab_of_mine_xyz.py"
    file.write_text(COMPONENT)
    return file


def test_ones_own_code_runs_if_it_is_the_same(own_code: Path) -> None:
    crate = _crate(KINDS["reward"]("lab_of_mine_xyz:digits"), code_digests([own_code.name]))
    assert "lab_of_mine_xyz:digits" in parameters(crate, PLACE, Params(), ()).reward.components


def test_ones_own_code_of_another_version_is_not_imported(own_code: Path) -> None:
    crate = _crate(KINDS["reward"]("lab_of_mine_xyz:digits"), {own_code.name: "0" * 64})
    with pytest.raises(UserError, match=r"of which lab_of_mine_xyz\.py here is another than its author's"):
        parameters(crate, PLACE, Params(), ())
    assert not Path("imported").exists()


def test_a_file_of_the_crate_is_not_ones_own_code(own_code: Path) -> None:
    Path("crate").mkdir()
    theirs = own_code.rename(Path("crate", own_code.name))
    crate = _crate(KINDS["reward"]("crate.lab_of_mine_xyz:digits"), {"crate/lab_of_mine_xyz.py": sha256_of(theirs)})
    with pytest.raises(UserError, match="names code of its author"):
        parameters(crate, Path("crate"), Params(), ())
    assert not Path("imported").exists()
