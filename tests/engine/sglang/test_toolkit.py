"""The compiler of a server on a GPU, on made-up machines."""

import os
import stat
import sysconfig
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo.engine.sglang.toolkit import compiler_environment, linked_toolkit
from dagrpo.utils.tempdirs import torch_caches


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """As NVIDIA's wheels lay them: lib in the place of lib64, and libcudart.so.13 without libcudart.so."""
    folder = tmp_path / "site-packages/nvidia/cu13"
    for name in ("bin/nvcc", "bin/nvcc.profile", "nvvm/bin/cicc", "include/cuda_runtime.h"):
        _write(folder / name)
    for name in ("libcudart.so.13", "libcudart_static.a", "libnvperf_host.so"):
        _write(folder / "lib" / name)
    return folder


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _toolkit(home: Path, release: str) -> Path:
    _write(home / "bin/nvcc", f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n")
    _write(home / "include/cuda_runtime.h")
    _write(home / "lib64/libcudart.so")
    return home


def _chosen(tmp_path: Path, usual: str = "nowhere", **environment: str) -> dict[str, str]:
    inherited = {"PATH": "/nowhere", "DAGRPO_CACHE": str(tmp_path / "cache"), **environment}
    return compiler_environment(inherited, tmp_path / "site-packages", tmp_path / usual)


def test_the_folder_of_links_has_what_compilers_and_linkers_ask_for(wheels: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver/libcuda.so.1"
    _write(driver)
    home = linked_toolkit(wheels, tmp_path / "cache", driver)
    for name in ("bin/nvcc", "nvvm/bin/cicc", "include/cuda_runtime.h", "lib64/libcudart.so", "lib64/libcudart.so.13",
                 "lib/libcudart.so", "lib64/libnvperf_host.so", "lib64/libcudart_static.a", "lib64/stubs/libcuda.so"):  # fmt: skip
        assert (home / name).is_file(), name
    assert (home / "lib64/libcudart.so").resolve() == wheels / "lib/libcudart.so.13"
    assert (home / "lib64/stubs/libcuda.so").resolve() == driver


def test_the_folder_of_links_is_written_once_and_another_environment_has_another(wheels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = linked_toolkit(wheels, cache, None)
    written = first.lstat().st_mtime_ns
    assert linked_toolkit(wheels, cache, None) == first
    assert first.lstat().st_mtime_ns == written
    _write(wheels / "lib/libnvrtc.so.13")
    second = linked_toolkit(wheels, cache, None)
    assert sorted(cache.iterdir()) == sorted([first, second])
    assert not (first / "lib64/libnvrtc.so").exists()
    assert (second / "lib64/libnvrtc.so").is_file()


@pytest.mark.parametrize("place", ["CUDA_HOME", "PATH", "usual"])
def test_a_whole_toolkit_of_cuda_13_0_is_used_wherever_it_is(place: str, wheels: Path, tmp_path: Path) -> None:
    own = _toolkit(tmp_path / "own", "13.0")
    named = {"CUDA_HOME": {"CUDA_HOME": str(own)}, "PATH": {"PATH": str(own / "bin")}, "usual": {"usual": "own"}}
    assert _chosen(tmp_path, **named[place])["CUDA_HOME"] == str(own)


@pytest.mark.parametrize(
    ("release", "lacking"),
    [("12.8", ""), ("13.5", ""), ("130.0", ""), ("13.0", "include/cuda_runtime.h"), ("13.0", "lib64/libcudart.so")],
)
def test_a_toolkit_of_another_cuda_or_with_gaps_gives_way_to_that_of_the_wheels(
    release: str, lacking: str, wheels: Path, tmp_path: Path
) -> None:
    own = _toolkit(tmp_path / "own", release)
    if lacking:
        (own / lacking).unlink()
    found = _chosen(tmp_path, usual="own", CUDA_HOME=str(own), PATH=str(own / "bin"))
    assert Path(found["CUDA_HOME"]).parent == tmp_path / "cache"
    assert (Path(found["CUDA_HOME"]) / "bin/nvcc").resolve() == wheels / "bin/nvcc"
    (wheels / "bin/nvcc").unlink()
    assert "CUDA_HOME" not in _chosen(tmp_path), "without any, SGLang is left to itself"


FOREIGN = pytest.param("of another user", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root gives away"))


def test_ninja_of_the_environment_comes_first_and_what_the_user_has_set_stays(wheels: Path, tmp_path: Path) -> None:
    scripts = sysconfig.get_path("scripts")
    found = _chosen(tmp_path, PATH=f"/usr/bin{os.pathsep}{scripts}")
    assert found["PATH"].split(os.pathsep) == [scripts, "/usr/bin"]
    assert 1 <= int(found["MAX_JOBS"]) <= (os.cpu_count() or 1)
    assert found["TRITON_CACHE_DIR"] == str(tmp_path / "cache/kernels/triton")
    assert not {"MAX_JOBS", "TRITON_CACHE_DIR"} & _chosen(tmp_path, MAX_JOBS="3", TRITON_CACHE_DIR="/mine").keys()


def test_caches_of_kernels_move_only_when_asked(wheels: Path, tmp_path: Path) -> None:
    inherited = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    found = compiler_environment(inherited, tmp_path / "site-packages", tmp_path / "nowhere")
    assert not [name for name in found if name.endswith("CACHE_DIR")]
    assert Path(found["CUDA_HOME"]).parent == tmp_path / "xdg/dagrpo"


@pytest.mark.parametrize("mode", [0o770, 0o1777, FOREIGN])
@pytest.mark.parametrize("shared", ["cache", "cache/kernels", "cuda"])
def test_a_cache_that_others_may_write_to_is_refused_whatever_is_in_it(
    shared: str, mode: int | str, wheels: Path, tmp_path: Path
) -> None:
    home = Path(_chosen(tmp_path)["CUDA_HOME"])
    folder = home if shared == "cuda" else tmp_path / shared
    if isinstance(mode, int):
        folder.chmod(mode)
    else:
        os.chown(folder, 12345, 12345)
    with pytest.raises(UserError, match=rf"{folder} keeps compilers .*DAGRPO_CACHE"):
        _chosen(tmp_path)


def test_the_cache_is_made_for_its_user_alone_whatever_the_umask(wheels: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = Path(_chosen(tmp_path)["CUDA_HOME"])
    finally:
        os.umask(before)
    folders = (tmp_path / "cache", tmp_path / "cache/kernels", home)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3
    assert _chosen(tmp_path)["CUDA_HOME"] == str(home)


def test_what_torch_compiles_is_kept_below_the_cache_folder_unless_a_variable_says_where(tmp_path: Path) -> None:
    elsewhere = {"TRITON_CACHE_DIR": "/elsewhere"}
    found = torch_caches({"XDG_CACHE_HOME": str(tmp_path)} | elsewhere)
    assert found == {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "dagrpo/kernels/inductor")}
    assert (tmp_path / "dagrpo/kernels").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()  # a home that cannot be written to
    variables = elsewhere | {"TORCHINDUCTOR_CACHE_DIR": "/elsewhere", "XDG_CACHE_HOME": str(tmp_path / "file/cache")}
    assert torch_caches(variables) == {}
