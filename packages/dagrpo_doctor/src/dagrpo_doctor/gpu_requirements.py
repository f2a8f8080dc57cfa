"""Requirements of a machine with a GPU, checked with the standard library.

`python3 packages/dagrpo_doctor/src/dagrpo_doctor/gpu_requirements.py [--check [--mirror FOLDER]]` runs before anything is installed.
It prints each missing requirement with the command that fixes it, and ends with 1 if one is not met. `make gpu`, `make gpu-check` (which
passes --check) and `dagrpo doctor` use this list.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

if not __package__:  # run as a file, by a Python in which no package is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dagrpo_doctor import gpus
from dagrpo_doctor.finding import GIBIBYTE, Finding, apt, check, gib, sudo

LEAST_DISK = 25 * GIBIBYTE  # the packages for a GPU, uv's cache of them, and an experiment
LEAST_SHARED_MEMORY = 256 << 20  # bytes
SHARED_MEMORY = Path("/dev/shm")
SECONDS = 20.0  # for git to answer
OLDEST, NEWEST = (3, 11), (3, 13)  # Python
SECONDS_OF_HUB = 8.0
HUB = "https://huggingface.co"
DATA_SET = "datasets/openai/gsm8k"  # of the check's experiment
MIRRORED = ("gsm8k/train", "gsm8k/test")  # .jsonl or .parquet
UNREACHABLE = (OSError, ValueError, HTTPException)  # what urlopen raises, of a malformed address too


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every requirement that is not met with its remedy. Raises SystemExit with 1 if a run on the GPU would fail."""
    parser = argparse.ArgumentParser(prog="gpu_requirements.py", add_help=False)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--mirror")
    options, _ = parser.parse_known_args(arguments)  # the other options are those of benchmarks.gpu
    is_project = Path(sys.prefix) == Path(".venv").absolute()  # else `make gpu` makes .venv, of a Python with headers
    checked = list(check_all(mirror=options.mirror, with_headers=is_project) if options.check else check_installation())
    for each in checked:
        if not each.is_there:
            print(f"{each.state}: {each.name}: {each.detail}\n    {each.remedy}", file=sys.stderr)
    if any(each.is_trouble for each in checked):
        print(
            "Nothing was installed or removed. Fix what is missing, then run the same command again.", file=sys.stderr
        )
        raise SystemExit(1)


def check_installation(
    folder: Path = Path(), *, with_headers: bool = False, needs_memory: bool = False
) -> Iterator[Finding]:
    """Yield the requirements of an installation for a GPU in `folder`.

    `with_headers`: also of the Python that runs this. `needs_memory`: a GPU of LEAST_MEBIBYTES is required, not only advised.
    """
    yield from gpus.check_cards(gpus.cards(), needs_memory=needs_memory)
    yield headers(is_needed=with_headers)
    yield from compilers()
    yield from (program(name) for name in ("make", "git"))
    yield disk(folder)
    yield shared_memory()
    yield cache()


def check_all(folder: Path = Path(), *, mirror: str | None = None, with_headers: bool = True) -> Iterator[Finding]:
    """Yield the requirements of `make gpu-check`: those of an installation, a git repository, and GSM8K, in `mirror` if given."""
    yield from check_installation(folder, with_headers=with_headers, needs_memory=True)
    yield repository(folder)
    yield data(mirror)


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


def fits() -> bool:
    """Return True if this Python has a version that fits."""
    return OLDEST <= sys.version_info[:2] <= NEWEST


def makes_environments() -> bool:
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def headers(*, is_needed: bool) -> Finding:
    """Check that Python.h exists, which Triton includes for each kernel; in an environment, that of its base Python."""
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    place = Path(sysconfig.get_path("include", vars=base)) / "Python.h"
    fault = f"{place} is not there: Triton compiles no kernel without it"
    remedy = f"{apt('python3-dev')}; or `make gpu`, which gets a Python with headers by uv"
    return check("Python.h", place.is_file(), str(place), fault, remedy, needed=is_needed)


def compilers() -> Iterator[Finding]:
    """Yield the compilers: of C for Triton and packages without wheels, of C++ for kernels that SGLang compiles."""
    for language, programs in (("C", ("cc", "gcc", "clang")), ("C++", ("c++", "g++", "clang++"))):
        place = next(filter(None, map(shutil.which, programs)), None)
        fault = f"none of {', '.join(programs)} is on PATH"
        yield check(f"{language} compiler", place is not None, str(place), fault, apt("g++"))


def program(name: str, remedy: str = "") -> Finding:
    """Check that a program is on PATH. remedy: by default the package of that name."""
    place = shutil.which(name)
    return check(name, place is not None, str(place), "not on PATH", remedy or apt(name))


def data(mirror: str | None = None) -> Finding:
    """Check access to GSM8K: in the folder `mirror`, or the one that DAGRPO_DATA names, else at the hub."""
    source = "--mirror" if mirror else "DAGRPO_DATA"
    mirror = mirror or os.environ.get("DAGRPO_DATA")
    if mirror:
        missing = [
            name
            for name in MIRRORED
            if not any(Path(mirror, f"{name}.{kind}").is_file() for kind in ("jsonl", "parquet"))
        ]
        fault = f"{', '.join(missing)} (.jsonl or .parquet) not in {mirror}, which {source} names"
        remedy = f"copy the files there (docs/tasks.md), or leave out {source} to ask the hub"
        return check("GSM8K", not missing, mirror, fault, remedy)
    return hub()


def hub() -> Finding:
    """Check that the hub, or the mirror that HF_ENDPOINT names, has GSM8K."""
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    address = endpoint.rpartition("@")[2]  # without a password
    try:
        with urlopen(request(f"{endpoint.rstrip('/')}/api/{DATA_SET}", method="HEAD"), timeout=SECONDS_OF_HUB):
            trouble = ""
    except HTTPError as error:
        trouble = f"answers {error.code} for {DATA_SET}"
    except UNREACHABLE as error:
        trouble = f"cannot be reached ({reason(error)})"
    remedy = (
        "check the network or export HTTPS_PROXY; or export HF_ENDPOINT of a mirror; or give a folder with copies: "
        "export DAGRPO_DATA=FOLDER, or of the check --mirror FOLDER in GPU_CHECK"
    )
    return check("GSM8K", not trouble, f"{address} has {DATA_SET}", f"{address} {trouble}", remedy)


def request(address: str, *, method: str = "GET", accept: str = "*/*") -> Request:
    """Return the request for an address, with user and password in the header Authorization. Raises ValueError if it is malformed.

    urllib takes them for a part of the host, and prints them. A redirection does not pass the header on.
    """
    parts = urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    result = Request(urlunsplit(parts._replace(netloc=host)), method=method, headers={"Accept": accept})
    if user:
        pair = unquote(user if ":" in user else f"{user}:")
        result.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    return result


def reason(error: Exception) -> str:
    """Return why an address cannot be read, without the address: it may hold a password, and messages of urllib may quote it."""
    if isinstance(error, HTTPError):
        return f"HTTP status {error.code}"
    cause = getattr(error, "reason", error)
    is_of_system = isinstance(cause, OSError) and not isinstance(cause, URLError)
    return f"{type(cause).__name__}: {cause}" if is_of_system else type(error).__name__


if __name__ == "__main__":
    main()
