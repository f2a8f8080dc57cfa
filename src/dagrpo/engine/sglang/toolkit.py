"""CUDA toolkit of links to the compiler in the installed wheels."""

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from dagrpo.utils.machine import processors
from dagrpo.utils.tempdirs import cache_folder, kernels_folder, own_folder, torch_caches

CUDA = "13.0"  # of torch in requirements/gpu.lock
WHEELS = Path("nvidia/cu13")  # below site-packages: where NVIDIA's wheels put their files
USUAL = Path("/usr/local/cuda")
DRIVER = "libcuda.so.1"
RUNTIME = "libcudart.so.13"  # of that CUDA
BYTES_OF_A_COMPILER = 4 << 30  # the most that nvcc takes for one file of FlashInfer's
WHOLE = ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart.so")


def kernel_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that put all compiled kernels below DAGRPO_CACHE, in a folder that is created; {} if it is not set.

    Raises UserError if another user may write there.
    """
    if not environment.get("DAGRPO_CACHE"):
        return {}
    kernels = kernels_folder(environment)
    folders = {
        "SGLANG_CACHE_DIR": kernels,
        "SGLANG_JIT_CACHE_DIR": kernels / "jit",
        "TVM_FFI_CACHE_DIR": kernels / "tvm-ffi",
        "FLASHINFER_WORKSPACE_BASE": kernels,
    }
    own = {name: str(folder) for name, folder in folders.items() if name not in environment}
    return own | torch_caches(environment)


def compiler_environment(
    inherited: Mapping[str, str], site_packages: Path | None = None, usual: Path = USUAL
) -> dict[str, str]:
    """Return the variables with which SGLang, FlashInfer and Triton find nvcc of CUDA 13.0, ninja and their caches.

    The machine's own toolkit is used if it is complete and of that version, else one of links to the wheels, which is
    written into the cache folder. CUDA_HOME is left out where the wheels lack nvcc, as in the set for a CPU. Raises UserError if another
    user may write to the cache folder.
    """
    installed = site_packages or Path(sysconfig.get_path("purelib"))
    home = _own_toolkit(inherited, usual)
    if home is None and (installed / WHEELS / "bin/nvcc").is_file():
        home = linked_toolkit(installed / WHEELS, cache_folder(inherited), library(DRIVER, os.environ))
    found = kernel_caches(inherited) | {"PATH": _with_scripts(inherited.get("PATH", os.defpath))}
    if "MAX_JOBS" not in inherited:
        found["MAX_JOBS"] = str(_jobs())
    return found if home is None else found | {"CUDA_HOME": str(home), "CUDA_PATH": str(home)}


def with_cuda_runtime(inherited: Mapping[str, str], site_packages: Path | None = None) -> str:
    """Return LD_LIBRARY_PATH with the folder of the CUDA runtime's wheel at its end, after a driver that was put on it."""
    folder = (site_packages or Path(sysconfig.get_path("purelib"))) / WHEELS / "lib"
    named = [part for part in inherited.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys((*named, str(folder))))


def _with_scripts(path: str) -> str:
    """Put the environment's own scripts first: ninja is one of them."""
    scripts = sysconfig.get_path("scripts")
    return os.pathsep.join([scripts, *(part for part in path.split(os.pathsep) if part != scripts)])


def _jobs() -> int:
    return max(1, min(processors(), int(psutil.virtual_memory().available) // BYTES_OF_A_COMPILER))


def _own_toolkit(environment: Mapping[str, str], usual: Path) -> Path | None:
    """Return the machine's complete toolkit of CUDA 13.0 in the order in which SGLang looks; None if missing."""
    nvcc = shutil.which("nvcc", path=environment.get("PATH", os.defpath))
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    places = [Path(named)] if named else []
    places += [Path(nvcc).resolve().parent.parent] if nvcc else []
    return next((place for place in (*places, usual) if _is_whole(place)), None)


def _is_whole(home: Path) -> bool:
    """Return True if nvcc is of the version, and its outputs find their headers and libraries."""
    if not all((home / name).is_file() for name in WHOLE):
        return False
    try:
        answer = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(rf"release {re.escape(CUDA)}\b", answer.stdout) is not None


def library(name: str, environment: Mapping[str, str]) -> Path | None:
    """Return the shared library that programs load, as the driver's, which FlashInfer links its kernels against; None without one."""
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout if ldconfig else ""
    found = [Path(line.rpartition("=> ")[2]) for line in listed.splitlines() if line.strip().startswith(f"{name} ")]
    named = [Path(folder) / name for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return next((path for path in (*named, *found) if path.is_file()), None)


def linked_toolkit(wheels: Path, cache: Path, driver: Path | None) -> Path:
    """Return a CUDA_HOME of links to `wheels`, which is written into `cache` atomically unless it is there.

    Its name has the digest of its links, so that none is changed while another environment compiles with its own. Raises UserError if
    another user may write there.
    """
    links = _links(wheels.resolve(), driver)
    text = "\n".join(f"{name} {target}" for name, target in sorted(links.items()))
    cache = own_folder(cache.resolve())
    home = cache / f"cuda-{CUDA}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not home.is_dir():
        _write_links(links, home)
    return own_folder(home)


def _write_links(links: Mapping[str, Path], home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".cuda-", dir=home.parent) as staging:
        whole = Path(staging) / home.name
        whole.mkdir(mode=0o700)
        for name, target in links.items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).symlink_to(target)
        try:
            whole.rename(home)
        except OSError:
            if not home.is_dir():  # else another process was first
                raise


def _links(wheels: Path, driver: Path | None) -> dict[str, Path]:
    """Return each link's name with its target.

    nvcc, SGLang and FlashInfer ask for lib64 and for libcudart.so; the wheels have lib and libcudart.so.13.
    """
    links = {folder.name: folder for folder in wheels.iterdir() if folder.name not in ("lib", "lib64")}
    libraries = sorted((wheels / "lib").iterdir())
    plain = {re.sub(r"\.so\.[0-9.]+$", ".so", file.name): file for file in libraries}
    links |= {f"lib64/{name}": file for name, file in plain.items()}
    links |= {f"lib64/{file.name}": file for file in libraries}
    links["lib"] = Path("lib64")
    return links if driver is None else links | {"lib64/stubs/libcuda.so": driver, f"lib64/stubs/{DRIVER}": driver}
