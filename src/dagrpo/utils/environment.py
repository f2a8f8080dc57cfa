"""Runtime environment that can change results; part of provenance and cache key."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from dagrpo.utils.devices import visible_devices

PACKAGES = ("torch", "sglang", "transformers", "pyarrow")


def environment(*, on_gpu: bool, packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of libraries and hardware that compute. `on_gpu`: the stage uses a GPU if there is one.

    `packages`: those of the stage's plug-ins, in addition.
    """
    installed = {name: installed for name in dict.fromkeys((*PACKAGES, *packages)) if (installed := version_of(name))}
    device = "gpu" if on_gpu and visible_devices() else "cpu"
    return {"python": platform.python_version(), "machine": platform.machine(), "device": device, **installed}


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
