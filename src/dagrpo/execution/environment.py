"""In what a stage runs, as far as that may change its result: provenance names it, and reuse asks for the same."""

import platform
from importlib.metadata import PackageNotFoundError, version

from dagrpo.execution.devices import visible_devices

PACKAGES = ("torch", "sglang", "transformers", "pyarrow")


def environment(*, on_gpu: bool) -> dict[str, str]:
    """Versions of what computes, and on what. `on_gpu`: the stage uses a GPU where there is one."""
    installed = {name: installed for name in PACKAGES if (installed := version_of(name))}
    device = "gpu" if on_gpu and visible_devices() else "cpu"
    return {"python": platform.python_version(), "machine": platform.machine(), "device": device, **installed}


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
