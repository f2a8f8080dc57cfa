"""What a machine must have for the check on a GPU, and what it has. Runs before anything is installed, so it imports no package.

`python3 benchmarks/gpu/machine.py` says what is missing, if anything is, and ends with 1.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)
LEAST_MEBIBYTES = 22_000  # of the GPU: an L4 or an RTX 4090
LEAST_DISK = 25 * (1 << 30)  # bytes: the packages for a GPU, uv's cache of them, and the experiment
SECONDS = 20.0  # for the driver to answer
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits")
LEAST_CAPABILITY = (8, 0)  # for bfloat16, and for attention that keeps no matrix of all pairs


def main() -> None:
    """Say what is missing."""
    missing = list(lacking())
    if missing:
        raise SystemExit(refusal(missing))


def refusal(missing: list[str]) -> str:
    """All that is missing, in one sentence."""
    return f"The check on a GPU cannot run here: {'; '.join(missing)}. `python -m benchmarks.gpu --rehearse` runs it without one, on a toy."


def lacking(folder: Path = Path()) -> Iterator[str]:
    """What is missing, each with its remedy; nothing: the check can run. `folder`: that of the project."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        yield f"Python is {sys.version_info.major}.{sys.version_info.minor}, and 3.11 to 3.13 is needed"
    gpus = told_by_the_driver()
    if not gpus:
        yield "no GPU: nvidia-smi lists none; install NVIDIA's driver, or take a machine that has one"
    for name, mebibytes, _, capability in gpus[:1]:
        if mebibytes < LEAST_MEBIBYTES:
            yield f"too little memory on the GPU: {name} has {mebibytes:,} MiB, and {LEAST_MEBIBYTES:,} are needed"
        if capability < LEAST_CAPABILITY:
            yield f"too old a GPU: {name} has compute capability {capability[0]}.{capability[1]}, and 8.0 (Ampere) is needed"
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        yield f"too little disk: {free / (1 << 30):.0f} GiB are free, and {LEAST_DISK >> 30} are needed"
    yield from (f"{program} is not on PATH: install it" for program in ("git", "make") if shutil.which(program) is None)


def told_by_the_driver() -> list[tuple[str, int, str, tuple[int, int]]]:
    """(name, MiB, driver, compute capability) of each GPU; [] where there is no driver, or it says nothing."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=SECONDS, check=True)
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        return [(row[0], int(row[1]), row[2], _capability(row[3])) for row in rows]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


if __name__ == "__main__":
    main()
