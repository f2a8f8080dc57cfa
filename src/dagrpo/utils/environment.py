"""Runtime environment of a stage: versions, lock, git commit, hardware."""

import getpass
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dagrpo.utils.devices import visible_devices
from dagrpo.utils.files import sha256_of

PACKAGES = ("torch", "sglang", "transformers", "pyarrow")
LOCKS = ("requirements/cpu.lock", "requirements/gpu.lock")
GPUS = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def environment(
    *, on_gpu: bool, computes: bool = False, packages: Sequence[str] = (), portable: bool = False
) -> dict[str, str]:
    """Return what can change results: versions of libraries, architecture, device. Part of provenance and of a stage's identity.

    on_gpu: the stage uses a GPU if there is one; without one its arithmetic is that of the processor, or portable, as of a stage that
    `computes` without a model. packages: those of the stage's plug-ins, in addition.
    """
    device = "gpu" if on_gpu and visible_devices() else "cpu"
    arithmetic = "portable" if portable and has_avx2() else kind_of_processor()
    installed = {name: installed for name in dict.fromkeys((*PACKAGES, *packages)) if (installed := version_of(name))}
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        **({"arithmetic": arithmetic} if (on_gpu or computes) and device == "cpu" else {}),
        **installed,
    }


@cache
def kind_of_processor() -> str:
    """Return the vendor and the instruction sets by which libraries choose their kernels, such as "AuthenticAMD avx2 avx512f"."""
    vendor, flags = (_first_match("", PROCESSOR, rf"^{key}\s*: (.+)$").get("", "") for key in ("vendor_id", "flags"))
    return " ".join([vendor or platform.machine(), *(name for name in INSTRUCTIONS if name in flags.split())])


def has_avx2() -> bool:
    """Return True if this processor has the instructions of portable arithmetic."""
    return "avx2" in kind_of_processor().split()


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment_tags(root: Path) -> dict[str, str]:
    """Return tags on a stage's runtime environment; unknown values are left out."""
    tags = {"version.python": sys.version.split()[0], "mlflow.user": user()}
    tags |= {f"version.{name}": installed for name in PACKAGES if (installed := version_of(name))}
    return tags | _hardware_tags() | _lock_tags(root) | _git_tags(root)


def user() -> str:
    """Return the name of this user, or the number of a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def _hardware_tags() -> dict[str, str]:
    """Return tags on processor, cores, memory, and GPUs; read from /proc, for a driver may take seconds to answer."""
    tags = {"hardware.cores": str(os.cpu_count() or 0), "hardware.instructions": kind_of_processor()}
    tags |= _first_match("hardware.processor", PROCESSOR, r"^model name\s*: (.+)$")
    gpus = [_first_match("model", path, r"^Model:\s+(.+)$") for path in sorted(GPUS.glob("*/information"))]
    models = [gpu["model"] for gpu in gpus if gpu]
    return tags | _memory() | ({"hardware.gpu": f"{len(models)} x {models[0]}"} if models else {})


def _memory() -> dict[str, str]:
    kibibytes = _first_match("kibibytes", Path("/proc/meminfo"), r"^MemTotal:\s+(\d+) kB$")
    return {"hardware.memory": f"{int(kibibytes['kibibytes']) / (1 << 20):.0f} GiB"} if kibibytes else {}


def _first_match(name: str, path: Path, pattern: str) -> dict[str, str]:
    try:
        match = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:  # some containers do not show it
        return {}
    return {name: match[1].strip()} if match else {}


def _lock_tags(root: Path) -> dict[str, str]:
    """Return tags on the lock whose torch is the installed one: cpu.lock and gpu.lock never pin the same build."""
    installed = (version_of("torch") or "").partition("+")[0]
    for name in LOCKS:
        path = root / name
        if path.is_file() and re.search(rf"^torch=={re.escape(installed)}(?![\w.])", path.read_text(), re.MULTILINE):
            return {"environment.lock": name, "environment.sha256": sha256_of(path)}
    return {}


def _git_tags(root: Path) -> dict[str, str]:
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"mlflow.source.git.commit": commit, "git.commit": commit, "git.dirty": str(dirty != "").lower()}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that does not answer
        return None
    return done.stdout.strip()
