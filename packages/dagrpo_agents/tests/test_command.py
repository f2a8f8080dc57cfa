"""A command that cannot be started is refused in a sentence; one that may well work is not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.errors import UserError
from dagrpo_agents.program import require_command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to start programs in, and a PATH with python, bash, docker, node and perl."""
    for name in ("python", "bash", "docker", "node", "perl"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch(mode=0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/there.py").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'nowhere'}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["./agent", "x"], "no program `./agent` that can be started: install it, or give its path"),
        (["x\0y"], "no program `x\\u0000y`"),
        (["python", "not_there.py"], "no file `not_there.py` for python to run"),
        (["python", "-u", "-W", "ignore", "not_there.py", "there.py"], "no file `not_there.py`"),
        (["python", "agents/main"], "no file `agents/main`"),
        (["bash", "run.sh"], "no file `run.sh`"),
        (["node", "-r", "dotenv/config", "agents/main"], "no file `agents/main`"),
    ],
)
def test_what_is_not_there_is_named(command: list[str], told: str) -> None:
    with pytest.raises(UserError) as refused:
        require_command(command)
    assert str(refused.value).startswith("rollout.agent.command: there is ")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "there.py", "--out", "results/x", "new.py"],
        ["python", "-c", "print(1/2)"],
        ["python", "-m", "my_lab.agent", "data/x"],
        ["bash", "-lc", "cd lab && ./run.sh"],
        ["python", "-X", "pycache_prefix=/tmp/not-there", "there.py"],
        ["node", "-r", "dotenv/config", "--import", "tsx/esm", "agent.mjs"],
        ["perl", "-I", "lib/", "agent.pl"],
        ["docker", "run", "image", "/app/agent.py"],
        ["python", "https://example.org/agent.py"],
    ],
    ids=" ".join,
)
def test_what_may_well_work_is_not_refused(command: list[str]) -> None:
    require_command(command)


def test_the_path_of_an_interpreter_is_one_too(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no file `not_there\.py`"):
        require_command([str(folder / "bin/python"), "not_there.py"])


@given(st.lists(st.text(), min_size=1, max_size=4), st.booleans())
def test_any_words_are_accepted_or_refused_in_a_short_sentence(words: list[str], is_python: bool) -> None:
    told = ""
    try:
        require_command(["python", *words] if is_python else words)
    except UserError as error:
        told = str(error)
    assert len(told) < 500
    assert "\n" not in told
