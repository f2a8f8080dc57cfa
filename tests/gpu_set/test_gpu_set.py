"""The set for a GPU on a machine without one: imports, symbols of its kernels, and kernels compiled for an H100."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.namespaces import NAMESPACE, require_mounts

from dagrpo.config.places import ROOT
from dagrpo.engine.sglang.toolkit import compiler_environment, with_cuda_runtime

PYTHON = Path(os.environ.get("DAGRPO_GPU_PYTHON") or ROOT / ".venv-gpu/bin/python")
SECONDS = 3600
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PYTHON.is_file(), reason="no environment of requirements/gpu.lock: `make nightly` makes .venv-gpu"
    ),
]


@pytest.fixture(scope="module")
def site_packages() -> Path:
    return Path(_run("import sysconfig; print(sysconfig.get_path('purelib'))").strip())


@pytest.fixture(scope="module")
def driver(site_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda.so.1 that defines the driver's functions which sgl_kernel calls, and does nothing."""
    folder = tmp_path_factory.mktemp("driver")
    symbols = sorted(_wanted_of_the_driver(site_packages))
    assert symbols
    source = folder / "stub.c"
    source.write_text("".join(f"int {symbol}(void) {{ return 100; }}\n" for symbol in symbols))
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True)
    return folder


def _wanted_of_the_driver(site_packages: Path) -> set[str]:
    libraries = sorted((site_packages / "sgl_kernel").rglob("*.so"))
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", *map(str, libraries)], capture_output=True, text=True, check=True
    )
    return set(re.findall(r" U (cu[A-Z]\w*)$", symbols.stdout, re.MULTILINE))


def _run(code: str, **environment: str) -> str:
    command = [str(PYTHON), "-c", code]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["torch", "triton", "flashinfer", "sglang", "torch.nn.attention.varlen"])
def test_a_package_can_be_imported(module: str) -> None:
    _run(f"import {module}")


def test_torch_is_of_the_cuda_that_the_toolkit_looks_for() -> None:
    from dagrpo.engine.sglang.toolkit import CUDA

    assert _run("import torch; print(torch.version.cuda)").strip() == CUDA


def test_every_symbol_of_sglangs_kernels_is_bound(driver: Path, site_packages: Path) -> None:
    library = next((site_packages / "sgl_kernel/sm90").glob("common_ops*.so"))
    code = f"import torch, ctypes, os; ctypes.CDLL({str(library)!r}, mode=os.RTLD_NOW); print('bound')"
    assert "bound" in _run(code, LD_BIND_NOW="1", LD_LIBRARY_PATH=str(driver))


LEAVES = """
import multiprocessing, torch_memory_saver
def child():
    print("the child runs")
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    with torch_memory_saver.configure_subprocess():
        process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_a_server_that_leaves_its_gpu_starts_with_the_runtime_among_the_wheels_alone(
    driver: Path, site_packages: Path, tmp_path: Path
) -> None:
    """As SGLang starts its scheduler with --enable-memory-saver, where the machine has a driver, and no CUDA."""
    require_mounts()
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    hidden = "for each in /usr/local/cuda*; do [ ! -d $each ] || mount -t tmpfs none $(readlink -f $each) || exit; done; exec "
    command = [*NAMESPACE, "sh", "-c", f"{hidden}{PYTHON} {script}"]
    with_driver = os.environ | {"LD_LIBRARY_PATH": str(driver)}
    for added, code in (({}, 127), ({"LD_LIBRARY_PATH": with_cuda_runtime(with_driver, site_packages)}, 0)):
        done = subprocess.run(command, env=with_driver | added, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("libcudart.so.13" in done.stderr, "the child runs" in done.stdout) == (code == 127, code == 0)


@pytest.mark.parametrize("module", ["activation", "sampling"])
def test_kernels_for_an_h100_are_compiled_by_the_compiler_among_the_wheels(
    module: str, driver: Path, site_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    inherited = {"PATH": "/usr/bin:/bin", "DAGRPO_CACHE": str(tmp_path), "HOME": str(tmp_path)}
    found = compiler_environment(inherited, site_packages, usual=tmp_path / "none")
    assert Path(found["CUDA_HOME"]).parent == tmp_path
    environment = inherited | found | {"PATH": f"{PYTHON.parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(driver)}
    command = [str(PYTHON), str(Path(__file__).with_name("kernels.py")), module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled after" in done.stdout
    assert list((tmp_path / "kernels").rglob("*.so"))
