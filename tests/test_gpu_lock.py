"""The lock for a GPU holds one CUDA: compiler, headers and libraries that fit each other."""

import re

from dagrpo.config.places import ROOT
from dagrpo.engine.sglang.toolkit import CUDA
from dagrpo_doctor import gpus

LOCK = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "requirements/gpu.lock").read_text(), re.MULTILINE))
COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def test_compiler_and_headers_are_of_the_cuda_whose_runtime_torch_brings() -> None:
    cuda = _major_minor(LOCK["nvidia-cuda-runtime"])
    assert {name: _major_minor(LOCK[name]) for name in COMPILER} == dict.fromkeys(COMPILER, cuda)
    assert _major_minor(LOCK["cuda-toolkit"]) == cuda


def test_the_compiler_that_is_looked_for_and_the_least_driver_are_those_of_the_cuda_in_the_lock() -> None:
    cuda = ".".join(_major_minor(LOCK["nvidia-cuda-runtime"]))
    assert cuda == CUDA == ".".join(map(str, gpus.CUDA))
    assert {"13.0": 580}[cuda] == gpus.LEAST_DRIVER, "of CUDA's release notes, table of driver versions, on Linux"
