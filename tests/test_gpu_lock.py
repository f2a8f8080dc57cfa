"""The lock for a GPU holds one CUDA: compiler, headers and libraries that fit each other."""

import re

from dagrpo.cli.doctor import gpus
from dagrpo.config.places import ROOT
from dagrpo.engine.sglang.toolkit import CUDA

LOCK = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "requirements/gpu.lock").read_text(), re.MULTILINE))
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")
# What SGLang 0.5.23 asks for in its METADATA: its kernels are built against this torch.
PINNED_BY_SGLANG = {
    "torch": "2.14.1",
    "sglang-kernel": "0.4.10",
    "flashinfer-python": "0.7.2",
    "transformers": "5.19.0",
}


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def test_compiler_and_headers_are_of_the_cuda_whose_runtime_torch_brings() -> None:
    cuda = _major_minor(LOCK["nvidia-cuda-runtime"])
    assert {name: _major_minor(LOCK[name]) for name in COMPILER} == dict.fromkeys(COMPILER, cuda)
    assert _major_minor(LOCK["cuda-toolkit"]) == cuda


def test_torch_and_the_kernels_are_those_that_sglang_pins() -> None:
    assert LOCK["sglang"] == "0.5.23", "read the new version's METADATA and correct the table above"
    assert {name: LOCK[name] for name in PINNED_BY_SGLANG} == PINNED_BY_SGLANG


def test_the_compiler_that_is_looked_for_and_the_least_driver_are_those_of_the_cuda_in_the_lock() -> None:
    cuda = ".".join(_major_minor(LOCK["nvidia-cuda-runtime"]))
    assert cuda == CUDA == ".".join(map(str, gpus.CUDA))
    assert {"13.0": 580}[cuda] == gpus.LEAST_DRIVER, "of CUDA's release notes, table of driver versions, on Linux"
