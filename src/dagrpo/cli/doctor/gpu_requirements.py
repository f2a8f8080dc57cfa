"""Requirements of a machine with a GPU, checked with the standard library.

`python3 src/dagrpo/cli/doctor/gpu_requirements.py [--check [--mirror FOLDER]]` runs before anything is installed. It prints each
missing requirement with the command that fixes it, and ends with 1 if one is not met. `make gpu`, `make gpu-check` (which passes
--check) and `dagrpo doctor` use this list.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:  # run as a file, by a Python in which no package is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dagrpo.cli.doctor import gpus, hub, programs
from dagrpo.cli.doctor.finding import GIBIBYTE, Finding, apt, check, gib, sudo

LEAST_DISK = 25 * GIBIBYTE  # the packages for a GPU, uv's cache of them, and an experiment
LEAST_SHARED_MEMORY = 256 << 20  # bytes
SHARED_MEMORY = Path("/dev/shm")
SECONDS = 20.0  # for git to answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every requirement that is not met with its remedy. Raises SystemExit with 1 if a run on the GPU would fail."""
    parser = argparse.ArgumentParser(prog="gpu_requirements.py", add_help=False)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--mirror")
    options, _ = parser.parse_known_args(arguments)  # the other options are those of benchmarks.gpu
    is_project = Path(sys.prefix) == Path(".venv").absolute()  # else `make gpu` makes .venv, of a Python with headers
    checked = list(of_check(mirror=options.mirror, with_headers=is_project) if options.check else of_gpu())
    for each in checked:
        if not each.is_there:
            print(f"{each.state}: {each.name}: {each.detail}\n    {each.remedy}", file=sys.stderr)
    if any(each.is_trouble for each in checked):
        print(
            "Nothing was installed or removed. Fix what is missing, then run the same command again.", file=sys.stderr
        )
        raise SystemExit(1)


def of_gpu(folder: Path = Path(), *, with_headers: bool = False, needs_memory: bool = False) -> Iterator[Finding]:
    """Yield the requirements of an installation for a GPU in `folder`.

    `with_headers`: also of the Python that runs this. `needs_memory`: a GPU of LEAST_MEBIBYTES is required, not only advised.
    """
    yield from gpus.of_cards(gpus.cards(), needs_memory=needs_memory)
    yield programs.python()
    yield programs.environment_module()
    yield programs.headers(is_needed=with_headers)
    yield from programs.compilers()
    yield from (programs.program(name) for name in ("make", "git"))
    yield disk(folder)
    yield shared_memory()
    yield cache()


def of_check(folder: Path = Path(), *, mirror: str | None = None, with_headers: bool = True) -> Iterator[Finding]:
    """Yield the requirements of `make gpu-check`: those of an installation, a git repository, and GSM8K, in `mirror` if given."""
    yield from of_gpu(folder, with_headers=with_headers, needs_memory=True)
    yield repository(folder)
    yield hub.data(mirror)


def disk(folder: Path, least: int = LEAST_DISK) -> Finding:
    """Check the free bytes of the file system of `folder`."""
    free = shutil.disk_usage(folder).free
    detail = f"{gib(free)} free in {folder.absolute()}, and {gib(least)} are needed"
    remedy = "`dagrpo clean --override-runs`, or move the project to a larger disk (and UV_CACHE_DIR with it)"
    return check("disk", free >= least, detail, detail, remedy)


def shared_memory() -> Finding:
    """Check the free bytes of /dev/shm, through which weights go to the server; a container has 64 MiB by itself."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    detail = f"{gib(free)} free, and {gib(LEAST_SHARED_MEMORY)} are needed"
    remedy = f"{sudo()}mount -o remount,size=16G {SHARED_MEMORY}; of a container, start it with --shm-size 16g"
    return check(str(SHARED_MEMORY), free >= LEAST_SHARED_MEMORY, detail, detail, remedy)


def cache(*, is_needed: bool = True) -> Finding:
    """Check that the cache folder can be written: packages and compiled kernels go there."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    nearest = next(each for each in (place, *place.absolute().parents) if os.path.exists(each))
    works = place.is_absolute() and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    remedy = f"export XDG_CACHE_HOME=FOLDER, or {sudo()}chown -R $(id -u):$(id -g) {place}"
    return check("cache", works, str(place), f"{place} cannot be written", remedy, needed=is_needed)


def repository(folder: Path) -> Finding:
    """Check that git lists the project's files: the check's experiment runs in a clone of them."""
    command = ["git", "-C", str(folder), "ls-files", "--error-unmatch", "Snakefile"]
    place = folder.absolute()
    try:
        in_english = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, env=in_english, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return check("repository", False, "", str(error), apt("git"))
    words = (done.stderr.strip().splitlines() or [""])[0]
    remedy = f"git -C {place} init && git -C {place} add -A"
    if "dubious ownership" in words:
        remedy = f"git config --global --add safe.directory {place}"
    return check("repository", done.returncode == 0, str(place), words, remedy)


if __name__ == "__main__":
    main()
