"""Compiles kernels for an H100 (sm_90a) on a machine without a GPU; run by the Python of the GPU set."""

import os
import sys
import time

import torch

# SGLang asks the device for its capability, FlashInfer the environment.
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_name = lambda device=None: "NVIDIA H100 80GB HBM3"
torch.cuda.get_device_capability = lambda device=None: (9, 0)
os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"


def main() -> None:
    """Compile what the first argument names and print the seconds that it took."""
    begun = time.monotonic()
    if sys.argv[1] == "activation":
        from sglang.kernels.ops.activation.activation import activation_module

        activation_module(torch.bfloat16)
    else:
        from flashinfer.jit.sampling import gen_sampling_module  # type: ignore[import-not-found]

        gen_sampling_module().build(verbose=True)
    print(f"compiled after {time.monotonic() - begun:.0f} s")


main()
