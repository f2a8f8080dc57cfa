"""Import finder for the stubs `sgl_kernel` and `torchvision` in SGLang server processes.

Runs at the start of every Python process whose environment has SGLANG_USE_CPU_ENGINE=1, before anything is imported, and
therefore imports next to nothing itself. It stands last on sys.meta_path: an installed package always wins.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Nothing else inside these packages can be imported: SGLang asks whether some of it can, and takes another path if not.
STUBBED = (
    "sgl_kernel",
    "torchvision",
    "torchvision.io",
    "torchvision.ops",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)

# transformers imports scikit-learn, and with it scipy and pandas, for one option of speculative decoding: 1.2 s.
UNNEEDED = ("sklearn",)
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")  # to ask torch would mean to import it into every process


class StubLoader(Loader):
    """Loader that fills a module with the names of dagrpo_sglang_cpu.stubs.<package>."""

    def exec_module(self, module: ModuleType) -> None:
        root = module.__name__.partition(".")[0]
        importlib.import_module(f"dagrpo_sglang_cpu.stubs.{root}").fill(module)


class StubFinder(MetaPathFinder):
    """Finder of stubbed modules that no other finder has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        if fullname not in STUBBED or _has_gpu():
            return None
        parent = sys.modules.get(root)
        if fullname != root and parent is not None and not is_stub(parent):
            return None
        return ModuleSpec(fullname, StubLoader(), origin="dagrpo_sglang_cpu", is_package=True)


def is_stub(module: ModuleType) -> bool:
    """Return True if a stub filled this module."""
    return module.__spec__ is not None and isinstance(module.__spec__.loader, StubLoader)


def install() -> None:
    """Append the finder, once."""
    if any(isinstance(finder, StubFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(StubFinder())
    if any(os.path.exists(device) for device in GPU_DEVICES):
        return
    for name in UNNEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: "is not installed", to the import system


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
