"""What a stage runs in, as tags; whether its process still runs; what a program of others gets of our environment."""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from dagrpo.utils.child_variables import passed_on, sockets_between_nodes
from dagrpo.utils.environment import environment, environment_tags, has_avx2, kind_of_processor
from dagrpo.utils.locks import Process
from dagrpo.utils.portable import SWITCH, VARIABLES, compute_portably, is_portable


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(
        ("git", *identity, *arguments), cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_and_whether_the_tree_differs_from_it_are_tags(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    clean = environment_tags(tmp_path)
    (tmp_path / "file").write_text("two")
    assert clean["git.commit"] == clean["mlflow.source.git.commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert clean["git.dirty"] == "false"
    assert environment_tags(tmp_path)["git.dirty"] == "true"


def test_the_lock_is_the_one_whose_torch_is_installed(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/cpu.lock").write_text("numpy==1.0\ntorch==0.0.1\n")
    (tmp_path / "requirements/gpu.lock").write_text(f"torch=={version('torch').partition('+')[0]}\n")
    tags = environment_tags(tmp_path)
    assert tags["environment.lock"] == "requirements/gpu.lock"
    assert tags["environment.sha256"] == hashlib.sha256((tmp_path / "requirements/gpu.lock").read_bytes()).hexdigest()


def test_what_a_model_computes_on_a_cpu_belongs_to_its_kind_of_processor_unless_it_is_portable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (
        environment(on_gpu=True)["arithmetic"]
        == environment_tags(Path())["hardware.instructions"]
        == kind_of_processor()
    )
    assert environment(on_gpu=True, portable=True)["arithmetic"] == ("portable" if has_avx2() else kind_of_processor())
    assert "arithmetic" not in environment(on_gpu=False), "nothing is computed"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "arithmetic" not in environment(on_gpu=True, portable=True), "a GPU computes"


def test_arithmetic_is_portable_if_the_run_says_so_whatever_another_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    compute_portably(False)
    assert not is_portable()
    assert not VARIABLES.keys() & os.environ.keys()
    monkeypatch.setenv(SWITCH, "0")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    compute_portably(False)
    assert (is_portable(), os.environ["MKL_CBWR"]) == (False, "AVX2"), "the user's"
    compute_portably(True)
    assert is_portable() == has_avx2()


def test_a_processor_without_avx2_computes_as_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    monkeypatch.setattr("dagrpo.utils.environment.PROCESSOR", tmp_path / "cpuinfo")
    kind_of_processor.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    try:
        compute_portably(True)
        assert not is_portable()
        assert environment(on_gpu=True, portable=True)["arithmetic"] == kind_of_processor()
    finally:
        monkeypatch.undo()
        kind_of_processor.cache_clear()


def test_a_process_is_gone_when_it_has_ended_also_before_it_is_waited_for_or_its_number_is_used_again() -> None:
    me = Process.current()
    assert not me.is_gone
    others = (replace(me, started=me.started - 60), replace(me, boot="another boot"), replace(me, pid=2**22 + 1))
    assert all(other.is_gone for other in others)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.running(child.pid)
    before = process.is_gone
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    assert (before, process.is_gone) == (False, True)
    child.communicate()


def test_a_process_lives_on_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Process.current()
    seconds = psutil.boot_time() + 3600  # what a clock set forward by an hour does to it
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: seconds)
    monkeypatch.setattr("psutil._pslinux.BOOT_TIME", seconds, raising=False)
    assert psutil.Process().create_time() > time.time()
    assert not before.is_gone


def test_a_program_gets_what_programs_need_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "MLFLOW_TRACKING_PASSWORD": "x",
        "SGLANG_API_KEY": "x",
        "openai_api_key": "x",
        "DATABASE_URL": "postgres://me:secret@host/db",
        "UNQUOTED_URL": "postgres://me:sec/ret@host/db",
        "REMOTE": "https://ghp_abc@github.com/me/mine",
        "PGPASSWORD": "x",
        "MYSQL_PWD": "x",
        "GITHUB_PAT": "x",
        "OPENAI_APIKEY": "x",
        "STORAGE_CONNECTION_STRING": "x",
        "DATABASE": "Server=here;User=me;Password=x",
    }
    unknown = {"MY_PW": "x", "JWT": "x", "STRIPE_SK": "x", "MY_SETTING": "x"}
    with_login = {
        "HTTPS_PROXY": "http://me:secret@proxy",
        "PIP_INDEX_URL": "https://me:secret@index",
        "UV_PUBLISH_TOKEN": "x",
    }
    with_login |= {"UV_INDEX_X_USERNAME": "ghp_x", "UV_INDEX_URL": "https://host/simple?token=abc"}
    secrets |= unknown | with_login
    plain = {
        "TOKENIZERS_PARALLELISM": "false",
        "http_proxy": "http://proxy:3128",
        "PYTHONPATH": "/lab",
        "LC_ALL": "C.UTF-8",
    }
    plain |= {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2", "SSL_CERT_FILE": "/x", "TMPDIR": "/scratch"}
    for name, value in (secrets | plain).items():
        monkeypatch.setenv(name, value)
    variables = passed_on()
    assert not secrets.keys() & variables.keys()
    assert plain.items() <= variables.items()
    assert passed_on(["HF_TOKEN"])["HF_TOKEN"] == "x"
    assert passed_on(["MY_SETTING"])["MY_SETTING"] == "x"


def test_no_proxy_stands_before_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    assert passed_on()["NO_PROXY"] == "intranet,127.0.0.1,localhost"


def test_between_nodes_a_users_interface_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert sockets_between_nodes("eth0") == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}
