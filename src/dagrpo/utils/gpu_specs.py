"""Table of known GPUs: peak FLOPs, memory and its bandwidth.

Peaks and bandwidths are those of NVIDIA's data sheets: https://www.nvidia.com/en-us/data-center/ h100, h200, dgx-b200, a100, l40s
and l4, and the appendix of the Ada architecture's white paper for the RTX 4090. The peak in bfloat16 is without sparsity (half of
the sheets' figure with it), on the RTX 4090 with sums in float32. That in float32 is without TF32, which nothing here turns on.
Memory is nvidia-smi's memory.total, which is less than the name says.
"""

import re
from dataclasses import dataclass

from dagrpo.core.errors import UserError, nearest_of

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The data of one kind of GPU."""

    name: str  # part of the name that a device reports
    bfloat16: float  # FLOPs per second
    float32: float  # FLOPs per second
    bandwidth: float  # bytes per second, between the memory and the processors
    mebibytes: int
    hardware: str | None = None  # preset of hardware for one such GPU; None: no preset has been planned for it

    @property
    def memory(self) -> int:
        """The memory in bytes."""
        return self.mebibytes * MEBIBYTE

    def peak(self, dtype: str) -> float:
        """Return FLOPs per second in float32, or in bfloat16 or float16, which are equally fast."""
        return self.float32 if dtype == "float32" else self.bfloat16


# The first whose name is part of a device's own name is its kind.
GPUS = (
    Gpu(name="H100 PCIe", bfloat16=756e12, float32=51e12, bandwidth=2.0e12, mebibytes=81_559, hardware="h100"),
    Gpu(name="H100 NVL", bfloat16=835e12, float32=60e12, bandwidth=3.9e12, mebibytes=95_830, hardware="h100"),
    Gpu(name="H100", bfloat16=989e12, float32=67e12, bandwidth=3.35e12, mebibytes=81_559, hardware="h100"),  # SXM
    Gpu(name="H200 NVL", bfloat16=835e12, float32=60e12, bandwidth=4.8e12, mebibytes=143_771, hardware="h200"),
    Gpu(name="H200", bfloat16=989e12, float32=67e12, bandwidth=4.8e12, mebibytes=143_771, hardware="h200"),  # SXM
    Gpu(name="B200", bfloat16=2250e12, float32=75e12, bandwidth=7.7e12, mebibytes=183_359),
    Gpu(name="A100-SXM4-40GB", bfloat16=312e12, float32=19.5e12, bandwidth=1.555e12, mebibytes=40_960),
    Gpu(name="A100-PCIE-40GB", bfloat16=312e12, float32=19.5e12, bandwidth=1.555e12, mebibytes=40_960),
    Gpu(
        name="A100", bfloat16=312e12, float32=19.5e12, bandwidth=2.039e12, mebibytes=81_920, hardware="a100"
    ),  # SXM, 80 GB
    Gpu(name="L40S", bfloat16=362e12, float32=91.6e12, bandwidth=0.864e12, mebibytes=46_068, hardware="l40s"),
    Gpu(name="L4", bfloat16=121e12, float32=30.3e12, bandwidth=0.3e12, mebibytes=23_034),
    Gpu(name="RTX 4090", bfloat16=165.2e12, float32=82.6e12, bandwidth=1.008e12, mebibytes=24_564, hardware="rtx4090"),
)


def kind_of(device: str) -> Gpu | None:
    """Return the kind of a device by the name that it reports; None if unknown, as for a part of one (MIG)."""
    if "MIG" in device:
        return None
    return next((gpu for gpu in GPUS if re.search(rf"\b{gpu.name}\b", device)), None)


def gpu_named(name: str) -> Gpu:
    """Return the kind for a user's name of it: h100, "H100 PCIe", a100, rtx4090, 4090. Raises UserError with the nearest."""
    known = {_plain(gpu.name): gpu for gpu in GPUS}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    near = nearest_of(wanted, known, cutoff=0.6)
    hint = f"the nearest is {known[near].name}" if near else f"there are {', '.join(gpu.name for gpu in GPUS)}"
    raise UserError(f"No GPU `{name}` is known here: {hint}; or give --memory, in GiB.")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|rtx|geforce|nvidia", "", name.lower())
