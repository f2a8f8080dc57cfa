"""The policy update on a made-up GPU: what it computes there, and how often it waits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.made_up_gpu.cases import CASES

HERE = Path(__file__).parent
MOST_WAITS = 4  # of an update
MOST_KERNELS = 200  # of a layer, before compilation

Counts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """Those of all cases, from one process of its own; a case that raises fails every test."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no c++ here, which builds the guard of the made-up device")
    if torch.version.cuda is not None:
        pytest.skip("torch has a CUDA guard of its own here: the made-up device is for its CPU build")
    guard, of_torch = tmp_path_factory.mktemp("guard") / "guard.so", Path(torch.__file__).parent
    build = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{of_torch / 'include'}", "-o", str(guard)]
    build += [str(HERE / "guard.cpp"), f"-L{of_torch / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(build, check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, str(HERE / "cases.py"), str(guard)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seen: Counts = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("case", CASES)
def test_an_update_waits_for_the_device_at_most_four_times(counts: Counts, case: str) -> None:
    assert 0 < sum(counts[case]["waits"].values()) <= MOST_WAITS


@pytest.mark.parametrize("case", CASES)
def test_an_update_takes_its_optimizer_step_by_one_fused_kernel(counts: Counts, case: str) -> None:
    assert counts[case]["skipped"] == 0
    assert counts[case]["optimizer"] == 1


def test_micro_batches_do_not_wait_for_the_device_or_copy_to_the_cpu(counts: Counts) -> None:
    assert counts["packed, micro-batches of one"]["kernels"] > 2 * counts["packed"]["kernels"]
    assert counts["packed, micro-batches of one"]["waits"] == counts["packed"]["waits"]


def test_a_layer_takes_at_most_200_kernels(counts: Counts) -> None:
    of_two_layers = counts["packed, four layers"]["kernels"] - counts["packed"]["kernels"]
    assert 0 < of_two_layers / 2 <= MOST_KERNELS


@pytest.mark.parametrize("case", [case for case in CASES if "padded" not in case and "float32" not in case])
def test_packed_rows_in_16_bits_take_the_attention_kernel_of_any_lengths(counts: Counts, case: str) -> None:
    assert set(counts[case]["attention"]) == {"_varlen_attn", "_varlen_attn_backward"}


@pytest.mark.parametrize("case", ["packed", "packed, micro-batches of one", "recomputed", "head in chunks"])
def test_every_product_of_packed_rows_in_bfloat16_is_in_bfloat16(counts: Counts, case: str) -> None:
    assert set(counts[case]["products"]) == {"bfloat16"}


def test_recomputed_layers_call_attention_once_more_each(counts: Counts) -> None:
    assert counts["packed"]["attention"]["_varlen_attn"] == 2
    assert counts["recomputed"]["attention"]["_varlen_attn"] == 4
