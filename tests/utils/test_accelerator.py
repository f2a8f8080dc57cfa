"""NPUs, of which there is none: a stand-in registers what torch_npu does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo.utils import accelerator
from dagrpo.utils.environment import environment

TORCH_NPU = """
import types, torch

torch.utils.rename_privateuse1_backend("npu")
found = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, set_device=lambda device: print("set", device))
torch._register_device_module("npu", found)
"""
ASKING = """
from dagrpo.utils import accelerator, distributed
accelerator.choose("npu")
print(distributed._device(), accelerator.COLLECTIVES[accelerator.kind()])
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(accelerator.VARIABLE, "")


def asked(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "torch_npu.py").write_text(TORCH_NPU)
    variables = {**os.environ, "PYTHONPATH": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", ASKING], env=variables, capture_output=True, text=True, check=False)


def test_a_process_gets_an_npu_of_its_own_and_hccl_beside_gloo(tmp_path: Path) -> None:
    done = asked(tmp_path, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert done.stdout.split("\n")[:2] == ["set npu:1", "npu:1 cpu:gloo,npu:hccl"], done.stderr


def test_more_processes_than_npus_are_refused(tmp_path: Path) -> None:
    assert "is 3, but this machine has 2 NPUs" in asked(tmp_path, LOCAL_RANK="1", LOCAL_WORLD_SIZE="3").stderr


def test_npus_without_torch_npu_are_an_error_that_says_what_to_install() -> None:
    accelerator.choose("npu")
    with pytest.raises(UserError, match=r"torch_npu cannot be imported .*: install .*or set runtime\.device to null"):
        accelerator.kind()


def test_npus_are_part_of_a_stages_identity() -> None:
    assert environment(on_gpu=True, npu=True)["device"] == "npu"
    assert environment(on_gpu=False, npu=True)["device"] == "cpu"


def test_what_is_chosen_holds_until_something_else_is() -> None:
    accelerator.choose("npu")
    assert os.environ[accelerator.VARIABLE] == "npu"
    accelerator.choose(None)
    assert accelerator.kind() in {"cpu", "cuda"}
