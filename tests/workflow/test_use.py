"""`dagrpo use` shows what changes, asks before it replaces what somebody wrote, and keeps that."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.damaging import stand_in

ROOT = Path(__file__).parents[2]
DAGRPO = Path(sys.executable).with_name("dagrpo")
QUESTION = b"Replace it? [y/N]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a fresh clone has of what `use` reads and writes."""
    for name in ("Snakefile", "params.yaml", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "presets").symlink_to(ROOT / "presets")
    return tmp_path


def _use(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [DAGRPO, "use", *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _edit(folder: Path) -> str:
    text = (folder / "params.yaml").read_text().replace("steps: 120", "steps: 7")
    (folder / "params.yaml").write_text(text)
    return text


def test_each_changed_parameter_is_shown_with_its_section(folder: Path) -> None:
    done = _use(folder, "arithmetic_tiny_control")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "experiment.name: arithmetic_tiny -> arithmetic_tiny_control",
        "experiment.seeds: [0] -> [0, 1, 2]",
        "reward.permuted: false -> true",
        "params.yaml is now arithmetic_tiny_control.",
    ]


def test_what_use_itself_wrote_is_replaced_without_a_question(folder: Path) -> None:
    for presets in (("qwen2_5_0_5b", "gsm8k"), ("qwen2_5_0_5b", "gsm8k", "gspo"), ("arithmetic_tiny",)):
        assert _use(folder, *presets).returncode == 0
    assert not list(folder.glob("params.yaml.old*"))


def test_an_edited_file_is_not_replaced_where_nobody_can_be_asked(folder: Path) -> None:
    edited = _edit(folder)
    done = _use(folder, "arithmetic_tiny")
    assert done.returncode == 1
    assert done.stdout == "training.steps: 7 -> 120\n"
    assert done.stderr.startswith("params.yaml was edited since `dagrpo use` wrote it: add --force to replace it")
    assert (folder / "params.yaml").read_text() == edited


def test_with_force_an_edited_file_is_replaced_and_kept(folder: Path) -> None:
    first = _edit(folder)
    assert "The edited one is kept as params.yaml.old1." in _use(folder, "arithmetic_tiny", "--force").stdout
    second = _edit(folder) + "# mine\n"
    (folder / "params.yaml").write_text(second)
    assert _use(folder, "arithmetic_tiny", "--force").returncode == 0
    assert [(folder / f"params.yaml.old{number}").read_text() for number in (1, 2)] == [first, second]


@pytest.mark.parametrize(("answer", "steps", "code"), [(b"y\n", 120, 0), (b"\n", 7, 1)])
def test_on_a_terminal_the_user_is_asked(folder: Path, answer: bytes, steps: int, code: int) -> None:
    _edit(folder)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [DAGRPO, "use", "arithmetic_tiny"], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while QUESTION not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, answer)
    assert process.wait(30) == code
    os.close(ours)
    assert yaml.safe_load((folder / "params.yaml").read_text())["training"]["steps"] == steps


@pytest.mark.parametrize(
    "content", [b"training: [", b"\xff\xfe", b"", b"training: {setps: 3}", b"- 1", b"a: 2020-13-45"]
)
def test_a_file_that_cannot_be_read_is_replaced_with_force_and_kept(folder: Path, content: bytes) -> None:
    (folder / "params.yaml").write_bytes(content)
    refused = _use(folder, "arithmetic_tiny")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert _use(folder, "arithmetic_tiny", "--force").returncode == 0
    assert (folder / "params.yaml.old1").read_bytes() == content
    assert (folder / "params.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()


def test_dvc_yaml_lists_the_code_that_the_presets_select(folder: Path) -> None:
    assert _use(folder, "qwen2_5_0_5b", "gsm8k", "gspo").returncode == 0
    assert "src/dagrpo/algorithms/losses/gspo.py" in (folder / "dvc.yaml").read_text()


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "device", "socket"])
def test_what_is_no_file_among_those_kept_before_is_left_as_it_is(folder: Path, kind: str) -> None:
    stand_in(folder / "params.yaml.old1", kind)
    edited = _edit(folder)
    done = _use(folder, "arithmetic_tiny", "--force")
    assert "The edited one is kept as params.yaml.old2." in done.stdout, done.stderr
    assert (folder / "params.yaml.old2").read_text() == edited
    assert not (folder / "params.yaml.old1").is_file()
