"""`dagrpo use` shows what changes, asks before it replaces what somebody wrote, and keeps that."""

import os
import pty
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.everyday import everyday
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.utils.failures import sentence_of

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
    """Run `dagrpo use` in this process and without a terminal; programs in the folder's `bin` come first on PATH."""
    with chdir(folder):
        done = CliRunner().invoke(app, ["use", *arguments], env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
    error = "" if done.exception is None or isinstance(done.exception, SystemExit) else sentence_of(done.exception)
    assert error is not None, done.exc_info
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr + error)


def _machine_with(count: int, name: str, mebibytes: int, folder: Path) -> None:
    """Put an nvidia-smi into the folder that lists so many GPUs."""
    program = folder / "bin/nvidia-smi"
    program.parent.mkdir()
    indices = "\\n".join(str(index) for index in range(count))
    program.write_text(f"#!/bin/sh\ncase $1 in *=index) printf '{indices}\\n';; *) echo '{name}, {mebibytes}';; esac\n")
    program.chmod(0o755)


def _values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((folder / "params.yaml").read_text())
    return values


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
        "params.yaml is now arithmetic_tiny_control. dvc.yaml follows it: commit both together.",
    ]


def test_a_file_whose_comments_name_other_plug_ins_is_not_edited(folder: Path) -> None:
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("cispo, ", ""))  # as before a loss was added
    done = _use(folder, "arithmetic_tiny_control")
    assert done.returncode == 0, done.stderr
    params.write_text("# mine\n" + params.read_text())
    assert "was edited" in _use(folder, "arithmetic_tiny").stderr


def test_an_edited_file_is_not_replaced_where_nobody_can_be_asked(folder: Path) -> None:
    edited = _edit(folder)
    done = _use(folder, "arithmetic_tiny")
    assert done.returncode == 1
    assert done.stdout == "training.steps: 7 -> 120\n"
    assert done.stderr.startswith("params.yaml was edited since `dagrpo use` wrote it: add --force to replace it")
    assert (folder / "params.yaml").read_text() == edited
    assert "The edited one is kept as params.yaml.old1." in _use(folder, "arithmetic_tiny", "--force").stdout
    assert (folder / "params.yaml.old1").read_text() == edited
    again = _edit(folder) + "# mine\n"
    (folder / "params.yaml").write_text(again)
    assert "kept as params.yaml.old2." in _use(folder, "arithmetic_tiny", "--force").stdout
    assert (folder / "params.yaml.old2").read_text() == again


@pytest.mark.parametrize(("answer", "steps", "code"), everyday([(b"\n", 7, 1)], [(b"y\n", 120, 0), (b"\n", 7, 1)]))
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


@pytest.mark.parametrize("content", everyday([b"\xff\xfe"], [b"training: [", b"\xff\xfe", b"training: {setps: 3}"]))
def test_a_file_that_cannot_be_read_is_replaced_with_force_and_kept(folder: Path, content: bytes) -> None:
    (folder / "params.yaml").write_bytes(content)
    refused = _use(folder, "arithmetic_tiny")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert _use(folder, "arithmetic_tiny", "--force").returncode == 0
    assert (folder / "params.yaml.old1").read_bytes() == content
    assert (folder / "params.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()


@pytest.mark.parametrize(("count", "processes"), [(1, 1), (3, 2)])
def test_the_preset_of_this_machines_gpus_lies_under_a_published_model(
    folder: Path, count: int, processes: int
) -> None:
    _machine_with(count, "NVIDIA H100 80GB HBM3", 81_559, folder)
    done = _use(folder, "qwen2_5_0_5b", "gsm8k")
    preset = "h100" if processes == 1 else f"h100_x{processes}"
    assert f"This machine has {count} x NVIDIA H100 80GB HBM3: the preset {preset} lies under everything" in done.stdout
    values = _values(folder)
    assert (values["training"]["dtype"], values["runtime"]["training"]["processes"]) == ("bfloat16", processes)
    assert values["experiment"]["name"] == "qwen2_5_0_5b-gsm8k"
    (folder / "bin/nvidia-smi").write_text("#!/bin/sh\nexit 9\n")  # nothing says what GPUs they are
    assert "This machine has" not in _use(folder, "qwen2_5_0_5b", "gsm8k").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("qwen2_5_0_5b", "gsm8k", "--hardware", "none"),
        ("arithmetic_tiny",),
        ("qwen2_5_0_5b", "gsm8k", "cpu"),
    ],
)
def test_no_hardware_is_laid_under_what_wants_or_has_none_of_it(folder: Path, arguments: tuple[str, ...]) -> None:
    _machine_with(1, "NVIDIA H100 80GB HBM3", 81_559, folder)
    done = _use(folder, *arguments)
    assert (done.returncode, "lies under" in done.stdout) == (0, False), done.stderr
    assert _values(folder)["training"]["dtype"] == "float32"


def test_hardware_that_is_named_lies_under_everything(folder: Path) -> None:
    assert _use(folder, "qwen2_5_0_5b", "gsm8k", "--hardware", "a100_x4").returncode == 0
    assert _values(folder)["runtime"]["training"]["processes"] == 4
    refused = _use(folder, "qwen2_5_0_5b", "gsm8k", "--hardware", "grpo")
    assert refused.returncode == 1
    assert refused.stderr.startswith("--hardware is grpo: give one of a100, a100_x2")
