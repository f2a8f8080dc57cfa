"""`dagrpo doctor`: each line says what there is or what mends it; the exit code is 1 where a run would fail."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

import dagrpo_sandbox
from dagrpo.cli.application import app
from dagrpo.config.places import ROOT
from dagrpo.config.presets import preset_text
from dagrpo.config.schema import read_params
from dagrpo_doctor import command, gpu_requirements
from dagrpo_plan.memory import disk_of
from dagrpo_plan.models import Models

SECRET = "hf_abcdefghijklmnopqrstuvwxyz123456"


def diagnosed(*arguments: str) -> tuple[dict[str, dict[str, Any]], int]:
    """Each line by its name, and the exit code."""
    done = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return {line["name"]: line for line in json.loads(done.stdout)}, done.exit_code


def test_a_project_folder_on_this_machine_is_fit_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines, code = diagnosed()
    assert {name for name, line in lines.items() if line["state"] == "missing"} == set()
    assert code == 0
    assert lines["params.yaml"]["detail"].startswith("experiment ")


def test_another_folder_is_told_and_so_is_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines, code = diagnosed()
    assert code == 1
    assert (lines["project"]["state"], "dagrpo init" in lines["project"]["remedy"]) == ("missing", True)
    Path("Snakefile").touch()
    Path("params.yaml").write_text("trainign: {}\n")
    lines, code = diagnosed()
    assert code == 1
    assert "the nearest known key is `training`" in lines["params.yaml"]["detail"]


def test_credentials_are_present_or_not_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://user:{SECRET}@example.org")
    for name in ("AWS_ACCESS_KEY_ID", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    lines = {each.name: each for each in command.check_credentials(online=False)}
    assert lines["HF_TOKEN"].detail == lines["MLFLOW_TRACKING_URI"].detail == "present"
    assert lines["AWS_ACCESS_KEY_ID"].state == "none"
    assert "hub" not in lines, "it is asked only when wanted"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://user:{SECRET}@127.0.0.1:{closed.getsockname()[1]}")
        lines = {each.name: each for each in command.check_credentials(online=True)}
    assert lines["hub"].state == "missing"
    assert SECRET not in str(lines)


def test_packages_that_are_missing_or_of_other_versions_than_the_lock_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/cpu.lock").write_text("pytest==0.0.1\nnot_there==2.0  # why\ntyper==1.0 ; extra\n")
    monkeypatch.setattr(command, "NEEDED", ("not_there",))
    lines = {each.name: each for each in command.check_software()}
    assert (lines["not_there"].state, lines["not_there"].remedy) == ("missing", "make setup")
    found = lines["versions"]
    assert found.detail == "pytest 0.0.1, not_there 2.0, typer 1.0 not as in requirements/cpu.lock"
    assert not found.is_trouble


def test_a_gpu_is_named_with_its_memory_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$1" in *name*) echo "0, NVIDIA H200, 143771, 580.95.05, 9.0";; *) echo 0;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(command, "version_of", lambda name: None)
    lines = {each.name: each for each in command.check_gpus()}
    assert lines["GPU 0"].detail == "NVIDIA H200, 143,771 MiB, compute capability 9.0"
    assert lines["driver"].detail == "580.95.05 for CUDA 13.0"
    packages = lines["packages for a GPU"]
    assert (packages.state, packages.remedy) == ("none", "make gpu"), "a GPU that nothing here would use"


@pytest.mark.parametrize(("wheel", "state"), [("libcudart.so.1313", "ok"), ("libcudart.so.1212", "missing")])
def test_with_the_packages_for_a_gpu_the_runtime_that_a_server_preloads_is_looked_for(
    wheel: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / wheel).touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(command, "version_of", lambda name: "1.0")
    monkeypatch.setattr(command, "RUNTIME", "libcudart.so.1313")  # no machine has it
    monkeypatch.setattr(command, "with_cuda_runtime", lambda environment: str(tmp_path))
    (found,) = [each for each in command.check_gpus() if each.name == "CUDA runtime"]
    assert (found.state, found.remedy) == (state, "make gpu")


def test_where_nothing_can_be_isolated_the_sandbox_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(program: str, limits: object) -> None:
        raise dagrpo_sandbox.SandboxUnavailable("bubblewrap cannot isolate programs here (x); user namespaces: sysctl")

    monkeypatch.setattr(dagrpo_sandbox, "run_cold", refused)
    assert command.check_isolation(is_needed=True).state == "missing"
    found = command.check_isolation(is_needed=False)
    assert (found.state, found.detail) == ("none", "bubblewrap cannot isolate programs here (x)")
    assert found.remedy == "user namespaces: sysctl"


@pytest.mark.parametrize(
    ("task", "tools", "is_needed"),
    [
        ("arithmetic", {}, False),
        ("dapo_tool", {}, True),
    ],
)
def test_isolation_is_needed_where_the_policy_may_run_programs_here(
    task: str, tools: dict[str, Any], is_needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = {"train": task, "evaluate": [task], "tasks": [task]}
    (tmp_path / "params.yaml").write_text(json.dumps({"experiment": experiment, "rollout": {"tools": tools}}))
    assert command.needs_isolation() is is_needed


def test_each_need_of_slurm_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [(each.name, each.state) for each in command.check_slurm()] == [("SLURM", "none")]
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    for name in ("sbatch", "squeue"):
        (tmp_path / name).touch(mode=0o755)
    lines = {each.name: each for each in command.check_slurm()}
    assert lines["SLURM: plug-in"].remedy == "make setup"
    assert lines["SLURM: programs"].detail == "not on PATH: srun, scancel"
    assert lines["SLURM: controller"].detail == "slurmctld does not answer"
    assert not any(each.is_there or each.is_trouble for each in lines.values())


def test_a_user_without_name_home_or_which_gets_a_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_name(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_name)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {each.name: each for each in command.check_software()}
    assert (found["user"].state, found["user"].remedy) == ("none", "export LOGNAME=NAME HOME=FOLDER")
    assert (found["which"].state, "make setup" in found["which"].remedy) == ("missing", True)
    monkeypatch.setenv("LOGNAME", "guest")
    monkeypatch.delenv("HOME")
    (user,) = [each for each in command.check_software() if each.name == "user"]
    assert (user.state, "has no home: dvc ends" in user.detail) == ("none", True)
    (tmp_path / "file").touch()
    for home in (str(tmp_path / "file"), "~"):
        monkeypatch.setenv("HOME", home)
        cache = gpu_requirements.cache(is_needed=False)
        assert (cache.state, "XDG_CACHE_HOME" in cache.remedy) == ("none", True)


def test_the_disk_that_is_needed_is_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.needed_disk() == command.LEAST_DISK
    Path("params.yaml").write_text(
        preset_text(["arithmetic_tiny"], ROOT / "presets").replace("steps: 120", "steps: 120000")
    )
    params = read_params(Path("params.yaml"))
    assert command.needed_disk() == sum(each.bytes for each in disk_of(params, Models.of(params))) > command.LEAST_DISK
