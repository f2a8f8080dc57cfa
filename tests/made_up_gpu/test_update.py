"""The policy update on a made-up GPU: what it computes there, and how often it waits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.made_up_gpu.device import CASES

pytestmark = pytest.mark.nightly
HERE = Path(__file__).parent
MOST_WAITS = 4  # of an update
MOST_KERNELS = 200  # of a layer, before compilation
LAYER, REST = 147_968, 131_200  # weights of a layer; of embeddings, which are the head, and the last norm
TWO_RANKS = [case for case in CASES if "ranks" in CASES[case]]

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


@pytest.mark.parametrize("case", ["packed", "packed, micro-batches of one", "recomputed", "head in chunks", *TWO_RANKS])
def test_every_product_of_packed_rows_in_bfloat16_is_in_bfloat16(counts: Counts, case: str) -> None:
    assert set(counts[case]["products"]) == {"bfloat16"}


def test_recomputed_layers_call_attention_once_more_each(counts: Counts) -> None:
    assert counts["packed"]["attention"]["_varlen_attn"] == 2
    assert counts["recomputed"]["attention"]["_varlen_attn"] == 4


def test_ranks_gather_weights_in_the_type_that_they_compute_in(counts: Counts) -> None:
    seen = counts["two ranks"]
    assert {kind for kind in seen["whole"] if "all-gather" in kind} == {"all-gather bfloat16"}
    assert seen["collectives"]["all-gather bfloat16"] == 1 + 2 * 2  # a layer forward and backward
    assert seen["whole"]["all-gather bfloat16"] == 2 * (REST + 2 * 2 * LAYER)


@pytest.mark.parametrize("case", ["two ranks", "two ranks, micro-batches of one"])
def test_ranks_add_each_gradient_up_once_in_float32_however_small_micro_batches_are(counts: Counts, case: str) -> None:
    assert {kind for kind in counts[case]["whole"] if "reduce-scatter" in kind} == {"reduce-scatter float32"}
    assert counts[case]["collectives"]["reduce-scatter float32"] == 1 + 2
    assert counts[case]["whole"]["reduce-scatter float32"] == 4 * (REST + 2 * LAYER)


def test_ranks_add_gradients_up_with_every_micro_batch_where_they_are_asked_to(counts: Counts) -> None:
    seen = counts["two ranks, each micro-batch reduced"]
    assert seen["whole"]["reduce-scatter float32"] == 2 * 4 * (REST + 2 * LAYER)


@pytest.mark.parametrize("case", TWO_RANKS)
def test_ranks_reduce_the_gradients_norm_by_one_more_call(counts: Counts, case: str) -> None:
    assert counts[case]["collectives"]["all-reduce float32"] == 1


def test_one_process_calls_no_collective(counts: Counts) -> None:
    assert counts["packed"]["collectives"] == {}


def test_a_saved_state_copies_each_tensor_to_the_cpu_once(counts: Counts) -> None:
    seen = counts["state"]
    assert seen["tensors"] == 4 * 26  # a weight and AdamW's three of each parameter
    assert seen["saved"] == {"_to_copy to the CPU": seen["tensors"]}


def test_a_loaded_state_copies_each_tensor_to_the_device_once_and_nothing_back(counts: Counts) -> None:
    seen = counts["state"]
    assert seen["loaded"] == {"waits": {}, "copies": seen["tensors"]}
    assert seen["places"] == ["cuda:0"]
    assert seen["skipped"] == 0
