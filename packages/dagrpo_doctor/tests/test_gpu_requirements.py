"""The needs of a GPU, asked on made-up machines by a Python without packages."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dagrpo_doctor import gpu_requirements, gpus

ROOT = Path(__file__).parents[3]
H100 = "0, NVIDIA H100 80GB HBM3, 81559, {}, 9.0"
OLD, NEW = "570.211.01", "580.95.05"  # drivers
PROGRAMS = ("cc", "c++", "make", "git")
COMPAT = "apt-get install -y cuda-compat-13-0"
Machine = Callable[..., str]


@pytest.fixture
def asked(tmp_path: Path) -> Machine:
    """Ask the list on a machine that has an nvidia-smi which says `card`, all programs but one, and nothing else."""

    def ask(card: str | None, without: str = "", arguments: tuple[str, ...] = (), **more: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir()
        there = [name for name in PROGRAMS if name != without]
        answers = dict.fromkeys(there, "exit 0") | ({} if card is None else {"nvidia-smi": f"echo '{card}'"})
        for name, says in answers.items():
            (folder / name).write_text(f"#!/bin/sh\n{says}\n")
            (folder / name).chmod(0o755)
        command = [
            sys.executable,
            "-I",
            "-S",
            "packages/dagrpo_doctor/src/dagrpo_doctor/gpu_requirements.py",
            *arguments,
        ]
        bare = {"PATH": str(folder), "HOME": str(tmp_path)} | more
        done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == int("missing: " in done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    return ask


@pytest.mark.parametrize(
    ("card", "without", "words", "remedy"),
    [
        (None, "", "GPU: nvidia-smi lists none", "apt-get install -y nvidia-driver-580-open"),
        (H100.format(OLD), "", f"driver: {OLD}, and CUDA 13.0 of requirements/gpu.lock needs 580 or newer", COMPAT),
        (H100.format(NEW), "c++", "C++ compiler: none of c++, g++, clang++", "apt-get install -y g++"),
        (H100.format(NEW), "git", "git: not on PATH", "apt-get install -y git"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(
    card: str | None, without: str, words: str, remedy: str, asked: Machine
) -> None:
    told = asked(card, without)
    assert f"missing: {words}" in told
    assert remedy in told


def test_a_driver_of_the_locks_cuda_lacks_nothing(asked: Machine) -> None:
    told = asked(H100.format(NEW)).splitlines()
    assert not [line for line in told if line.startswith("missing: ") and "disk" not in line]


def test_an_older_driver_does_where_the_loader_finds_its_compatibility_library(asked: Machine, tmp_path: Path) -> None:
    library = "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }"
    command = ["cc", "-shared", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=library, text=True, check=True)
    assert "driver" not in asked(H100.format(OLD), LD_LIBRARY_PATH=str(tmp_path))
    consumer = gpus.driver(gpus.Card("0", "NVIDIA GeForce RTX 4090", 24_564, OLD, (8, 9)))
    assert (consumer.is_trouble, "cuda-compat" in consumer.remedy) == (True, False)


T4 = gpus.Card("0", "Tesla T4", 15_360, "580.1", (7, 5), "GPU-0a")
SMALL = gpus.Card("1", "NVIDIA GeForce RTX 4060", 8_188, "580.1", (8, 9), "GPU-1b")
LARGE = gpus.Card("2", "NVIDIA H200", 143_771, "580.1", (9, 0), "GPU-2c")
UNIFIED = gpus.Card("0", "NVIDIA GB10", None, "580.1", (12, 1))


def test_memory_is_advised_for_an_installation_and_needed_for_the_check(asked: Machine) -> None:
    _, card = gpus.check_cards([SMALL])
    assert (card.state, "22,000 MiB are advised" in card.detail) == ("none", True)
    _, card = gpus.check_cards([SMALL], needs_memory=True)
    assert (card.state, "22,000 MiB are needed" in card.detail) == ("missing", True)
    told = asked(f"0, NVIDIA GeForce RTX 4060, 8188, {NEW}, 8.9, GPU-1b", arguments=("--check",))
    assert "missing: GPU 0: NVIDIA GeForce RTX 4060, 8,188 MiB" in told


def test_one_card_that_fits_is_enough() -> None:
    _, old, small, large = gpus.check_cards([T4, SMALL, LARGE], needs_memory=True)
    assert [old.state, small.state, large.state] == ["none", "none", "ok"]
    assert old.detail.endswith("compute capability 7.5; 8.0 (Ampere) or newer is needed; 22,000 MiB are needed")
    assert old.remedy == "leave it out: export CUDA_VISIBLE_DEVICES=2"


@pytest.mark.parametrize(
    ("names", "numbers"),
    [("2", ["2"]), ("GPU-1b,0", ["1", "0"]), ("2,-1,0", ["2"]), ("", []), ("7", []), ("MIG-5", ["MIG-5"])],
)
def test_only_the_cards_of_cuda_visible_devices_are_judged(
    names: str, numbers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert [card.number for card in gpus.visible([T4, SMALL, LARGE])] == numbers
    found = [each for each in gpus.check_cards([T4, SMALL, LARGE], needs_memory=True) if each.is_trouble]
    assert bool(found) == (names in {"", "7", "GPU-1b,0"})
    if not numbers:
        assert found[0].detail == f"CUDA_VISIBLE_DEVICES={names} names none of those that nvidia-smi lists: 0,1,2"


def test_what_nvidia_smi_does_not_know_hides_no_card_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, NVIDIA GB10, [N/A], 580.1, 12.1'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.cards() == [UNIFIED]
    unknown = UNIFIED._replace(driver="[N/A]", capability=None)
    assert [each.state for each in gpus.check_cards([unknown], needs_memory=True)] == ["ok", "ok"]


def test_an_old_driver_that_refuses_to_say_the_capability_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = '#!/bin/sh\ncase "$1" in *compute_cap*) exit 2;; *) echo "0, Tesla T4, 15360, 418.87, GPU-1a";; esac\n'
    (tmp_path / "nvidia-smi").write_text(answers)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.cards() == [gpus.Card("0", "Tesla T4", 15_360, "418.87", None, "GPU-1a")]


def test_headers_are_those_of_the_base_python_and_needed_only_of_an_environment_that_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DAGRPO_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    checks = {"missing": gpu_requirements.check_all(tmp_path), "none": gpu_requirements.check_installation(tmp_path)}
    for state, found in checks.items():  # `make gpu` gets a Python with headers
        assert [each.state for each in found if each.name == "Python.h"] == [state]
    assert not gpu_requirements.headers(is_needed=False).is_there
    header = tmp_path / f"include/python{sys.version_info.major}.{sys.version_info.minor}/Python.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert gpu_requirements.headers(is_needed=True).detail == str(header)


def test_tiny_shared_memory_and_a_full_disk_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 64 << 20}))
    memory = gpu_requirements.shared_memory()
    assert (memory.state, gpu_requirements.disk(tmp_path).state) == ("missing", "missing")
    assert "0.06 GiB free" in memory.detail
    assert "--shm-size 16g" in memory.remedy


def test_a_mirror_without_gsm8k_is_told_by_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAGRPO_DATA", str(tmp_path))
    assert "gsm8k/train, gsm8k/test (.jsonl or .parquet) not in" in gpu_requirements.data().detail
    assert "--mirror names" in gpu_requirements.data(str(tmp_path / "copies")).detail, "which comes first"
    (tmp_path / "gsm8k").mkdir()
    for name in ("train.jsonl", "test.parquet"):
        (tmp_path / "gsm8k" / name).touch()
    assert gpu_requirements.data().state == "ok"


@pytest.mark.parametrize(
    "endpoint",
    ["http://user:secret@127.0.0.1:1", "http://user:se/secret@127.0.0.1", "user:secret@host", "http://secret@[host"],
)
def test_a_hub_that_does_not_answer_is_told_without_its_password(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGRPO_DATA", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert gpu_requirements.data().state == "missing"
    assert "secret" not in gpu_requirements.data().detail


def test_user_and_password_of_an_address_go_into_a_header_that_no_redirection_passes_on() -> None:
    asked = gpu_requirements.request("https://user:p%40ss@mirror.example:8443/simple/uv/")
    assert asked.full_url == "https://mirror.example:8443/simple/uv/"
    assert asked.unredirected_hdrs == {"Authorization": "Basic dXNlcjpwQHNz"}  # of user:p@ss
    assert "Authorization" not in asked.headers
    assert not gpu_requirements.request("https://mirror.example/simple").has_header("Authorization")


def test_a_folder_that_git_does_not_know_or_that_is_another_users_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gpu_requirements.repository(tmp_path)
    assert (found.state, found.detail.startswith("fatal: not a git repository")) == ("missing", True)
    assert found.remedy == f"git -C {tmp_path} init && git -C {tmp_path} add -A"
    assert gpu_requirements.repository(ROOT).state == "ok"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as root in a container that mounts the checkout
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    found = gpu_requirements.repository(ROOT)
    assert (found.state, "dubious ownership" in found.detail) == ("missing", True)
    assert found.remedy == f"git config --global --add safe.directory {ROOT}"
