"""The needs of a machine with a GPU, checked with the standard library alone.

`python3 src/dagrpo/doctor/needs.py [--check [--mirror FOLDER]]` runs before anything is installed. It prints what is missing with the
command that mends it, and ends with 1 where a need is not met. `make gpu`, `make gpu-check` (which passes --check) and `dagrpo doctor`
ask this list.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

OLDEST, NEWEST = (3, 11), (3, 13)  # Python
CUDA = (13, 0)  # of torch in requirements/gpu.lock
LEAST_DRIVER = 580  # of that CUDA, on Linux: CUDA Toolkit release notes, table of driver versions
COMPATIBLE_DRIVER = 535  # the oldest long-lived branch that cuda-compat works on
LEAST_CAPABILITY = (8, 0)  # for bfloat16, and for attention that keeps no matrix of all pairs
LEAST_MEBIBYTES = 22_000  # of a GPU, for `make gpu-check`: an L4 or an RTX 4090
GIBIBYTE = 1 << 30
LEAST_DISK = 25 * GIBIBYTE  # the packages for a GPU, uv's cache of them, and an experiment
LEAST_SHARED_MEMORY = 256 << 20  # bytes
SHARED_MEMORY = Path("/dev/shm")
SECONDS = 20.0  # for the driver to answer
SECONDS_OF_HUB = 8.0
FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap", "uuid")
VISIBLE = "CUDA_VISIBLE_DEVICES"
HUB = "https://huggingface.co"
DATA_SET = "datasets/openai/gsm8k"  # of the check's experiment
MIRRORED = ("gsm8k/train", "gsm8k/test")  # .jsonl or .parquet
UNREACHABLE = (OSError, ValueError, HTTPException)  # what urlopen raises, of a malformed address too
CONSUMER = ("geforce", "titan")  # cards that cuda-compat refuses
INSTALLED_COMPAT = (Path("/usr/local/cuda/compat"), Path(f"/usr/local/cuda-{CUDA[0]}.{CUDA[1]}/compat"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis. Never holds a secret: of a credential only whether it is there."""

    name: str  # "GPU"
    found: str  # in words; of something missing, what is wrong
    is_there: bool = True
    is_needed: bool = True  # without it, runs fail; else they do without
    remedy: str = ""  # a command, or what to do, where it is missing

    @property
    def is_trouble(self) -> bool:
        return self.is_needed and not self.is_there

    @property
    def state(self) -> str:
        """ok; missing: a run needs it; none: a run does without."""
        return "ok" if self.is_there else "missing" if self.is_needed else "none"


class Card(NamedTuple):
    """A GPU as nvidia-smi lists it; what it does not know is None."""

    number: str
    name: str
    mebibytes: int | None  # None: it shares the machine's memory
    driver: str  # "580.95.05"
    capability: tuple[int, int] | None  # (9, 0); None: nvidia-smi is too old to say
    uuid: str = ""  # "GPU-5f1c..."

    @property
    def is_old(self) -> bool:
        return self.capability is not None and self.capability < LEAST_CAPABILITY

    @property
    def is_small(self) -> bool:
        return self.mebibytes is not None and self.mebibytes < LEAST_MEBIBYTES


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every need that is not met with its remedy. SystemExit with 1: a run on the GPU would fail."""
    parser = argparse.ArgumentParser(prog="needs.py", add_help=False)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--mirror")
    given, _ = parser.parse_known_args(arguments)  # the other options are those of benchmarks.gpu
    is_project = Path(sys.prefix) == Path(".venv").absolute()  # else `make gpu` makes .venv, of a Python with headers
    checked = list(of_check(mirror=given.mirror, with_headers=is_project) if given.check else of_gpu())
    for each in checked:
        if not each.is_there:
            print(f"{each.state}: {each.name}: {each.found}\n    {each.remedy}", file=sys.stderr)
    if any(each.is_trouble for each in checked):
        print("Nothing was installed or removed. Mend what is missing, then give the same command.", file=sys.stderr)
        raise SystemExit(1)


def of_gpu(folder: Path = Path(), *, with_headers: bool = False, needs_memory: bool = False) -> Iterator[Finding]:
    """Yield what an installation for a GPU in `folder` needs.

    `with_headers`: also of the Python that runs this. `needs_memory`: a GPU of LEAST_MEBIBYTES is needed, not only advised.
    """
    yield from of_cards(cards(), needs_memory=needs_memory)
    yield python()
    yield environment_module()
    yield headers(is_needed=with_headers)
    yield from compilers()
    yield from (_program(name) for name in ("make", "git"))
    yield disk(folder)
    yield shared_memory()
    yield cache()


def of_check(folder: Path = Path(), *, mirror: str | None = None, with_headers: bool = True) -> Iterator[Finding]:
    """Yield what `make gpu-check` needs: what an installation does, a repository git reads, and GSM8K, in `mirror` where one is given."""
    yield from of_gpu(folder, with_headers=with_headers, needs_memory=True)
    yield repository(folder)
    yield data(mirror)


def cards() -> list[Card]:
    """Return the GPUs that the driver lists; [] where there is no driver, or it says nothing."""
    fields: Sequence[str] = FIELDS
    answer = _asked(fields)
    if answer is None:  # an old driver refuses the whole query for the field compute_cap
        fields = [field for field in FIELDS if field != "compute_cap"]
        answer = _asked(fields)
    rows = [[cell.strip() for cell in line.split(",")] for line in (answer or "").splitlines()]
    return [_of_row(dict(zip(fields, row, strict=False))) for row in rows if row[0].isdecimal()]


def _asked(fields: Sequence[str]) -> str | None:
    """Return what nvidia-smi prints for these fields; None where it fails."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _of_row(row: Mapping[str, str]) -> Card:
    """Return the GPU of one line, by field; a field may be missing or hold words such as [N/A]."""
    memory = row.get("memory.total", "")
    return Card(
        number=row["index"],
        name=row.get("name", "GPU"),
        mebibytes=int(memory) if memory.isdecimal() else None,
        driver=row.get("driver_version", "unknown"),
        capability=_version(row.get("compute_cap", "")),
        uuid=row.get("uuid", ""),
    )


def visible(found: Sequence[Card]) -> list[Card]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to a process, by index or the beginning of a UUID; all where it is not set."""
    if VISIBLE not in os.environ:
        return list(found)
    listed = [name.strip() for name in os.environ[VISIBLE].split(",")]
    names = list(takewhile(lambda name: name not in {"", "-1"}, listed))  # as CUDA reads it
    named = [card for name in names for card in found if name == card.number or _is_uuid(name, card)]
    slices = [name for name in names if name.startswith("MIG-")]  # nvidia-smi lists the whole GPU, not the slice
    return [*dict.fromkeys(named), *(Card(name, "a slice", None, found[0].driver, None) for name in slices if found)]


def _is_uuid(name: str, card: Card) -> bool:
    return name.startswith("GPU-") and card.uuid.startswith(name)


def of_cards(found: Sequence[Card], *, needs_memory: bool = False) -> Iterator[Finding]:
    """Yield the driver's version, then each GPU that CUDA_VISIBLE_DEVICES leaves. One that fits is enough.

    `needs_memory`: a GPU of less than LEAST_MEBIBYTES does not fit.
    """
    seen = visible(found)
    if not found:
        yield Finding(
            name="GPU",
            found="nvidia-smi lists none",
            is_there=False,
            remedy=f"with a GPU in the machine: {_driver_remedy()}; of a container, start it with --gpus all",
        )
        return
    yield driver((seen or found)[0])
    if not seen:
        numbers = ",".join(card.number for card in found)
        yield Finding(
            name="GPU",
            found=f"{VISIBLE}={os.environ[VISIBLE]} names none of those that nvidia-smi lists: {numbers}",
            is_there=False,
            remedy=f"unset {VISIBLE}, or export {VISIBLE}={numbers}",
        )
    fitting = [card.number for card in seen if not (card.is_old or (card.is_small and needs_memory))]
    for card in seen:
        yield _card(card, fitting, needs_memory=needs_memory)


def driver(card: Card) -> Finding:
    """Check that the driver runs the lock's CUDA, by itself or through cuda-compat."""
    version = _version(card.driver)
    major = LEAST_DRIVER if version is None else version[0]  # unknown is no failure
    cuda = f"CUDA {CUDA[0]}.{CUDA[1]}"
    can_use_compat = major >= COMPATIBLE_DRIVER and not any(word in card.name.lower() for word in CONSUMER)
    compat = _compat() if can_use_compat and major < LEAST_DRIVER else None
    if major >= LEAST_DRIVER or compat is not None:
        return Finding(
            name="driver", found=f"{card.driver} for {cuda}{'' if compat is None else f', through {compat}'}"
        )
    return Finding(
        name="driver",
        found=f"{card.driver}, and {cuda} of requirements/gpu.lock needs {LEAST_DRIVER} or newer",
        is_there=False,
        remedy=f"{_driver_remedy()}{_compat_remedy() if can_use_compat else ''}",
    )


def _driver_remedy() -> str:
    return f"{apt(f'nvidia-driver-{LEAST_DRIVER}-open')}, then reboot (of a container or a rented machine: on its host, or take another)"


def _compat_remedy() -> str:
    """Return how this driver can stay: by a cuda-compat that is installed, else by one from NVIDIA's repository."""
    installed = next(filter(_has_driver, INSTALLED_COMPAT), None)
    package = f"cuda-compat-{CUDA[0]}-{CUDA[1]}"
    install = "" if installed else f"{apt(package)} from NVIDIA's repository, then "
    return (
        f"; or, as this is no GeForce card, keep the driver: {install}"
        f"export LD_LIBRARY_PATH={installed or INSTALLED_COMPAT[1]}:$LD_LIBRARY_PATH"
    )


def _compat() -> Path | None:
    """Return the folder whose libcuda programs load, where that is of a new enough driver.

    The loader reads LD_LIBRARY_PATH first, then ldconfig's cache, which NVIDIA's container toolkit points at /usr/local/cuda/compat.
    """
    on_path = [Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if name]
    first = next((folder for folder in (*on_path, *_cached()) if (folder / "libcuda.so.1").exists()), None)
    return first if first is not None and _has_driver(first) else None


def _cached() -> list[Path]:
    """Return the folders of libcuda.so.1 in ldconfig's cache, in the loader's order; [] without ldconfig."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.partition(" => ") for line in done.stdout.splitlines() if line.strip().startswith("libcuda.so.1 ")]
    return [Path(place.strip()).parent for _, _, place in lines if place]


def _has_driver(folder: Path) -> bool:
    """Return whether libcuda.so.1 of a folder is that of a driver new enough for the lock's CUDA."""
    version = (folder / "libcuda.so.1").resolve().name.removeprefix("libcuda.so.")
    return (_version(version) or (0, 0))[0] >= LEAST_DRIVER


def _card(card: Card, fitting: Sequence[str], *, needs_memory: bool) -> Finding:
    """Check the capability and the memory of one GPU; `fitting`: the numbers of those that do."""
    memory = "unknown memory" if card.mebibytes is None else f"{card.mebibytes:,} MiB"
    capability = "unknown" if card.capability is None else ".".join(map(str, card.capability))
    troubles = []
    if card.is_old:
        troubles.append(f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} (Ampere) or newer is needed")
    if card.is_small:
        troubles.append(
            f"{LEAST_MEBIBYTES:,} MiB are {'needed' if needs_memory else 'advised, and needed by make gpu-check'}"
        )
    is_unfit = card.number not in fitting
    return Finding(
        name=f"GPU {card.number}",
        found="; ".join([f"{card.name}, {memory}, compute capability {capability}", *troubles]),
        is_there=not troubles,
        is_needed=is_unfit and not fitting,
        remedy=_card_remedy(fitting, is_unfit=is_unfit),
    )


def _card_remedy(fitting: Sequence[str], *, is_unfit: bool) -> str:
    if not is_unfit:
        return "choose a model that fits: `dagrpo plan` says what an experiment takes"
    if fitting:
        return f"leave it out: export {VISIBLE}={','.join(fitting)}"
    return "take an A100, H100, H200, L4, L40S, RTX 3090, RTX 4090 or newer; `make run` needs no GPU"


def python() -> Finding:
    """Check the version of the Python that runs this; `make gpu` gets another where it does not fit."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    fits = OLDEST <= sys.version_info[:2] <= NEWEST
    return Finding(
        name="Python",
        found=f"{version}" if fits else f"{version}, and Python 3.11, 3.12 or 3.13 is needed",
        is_there=fits,
        is_needed=False,
        remedy="`make gpu` gets Python 3.12 by uv, from GitHub; elsewhere set UV_PYTHON_INSTALL_MIRROR",
    )


def environment_module() -> Finding:
    """Check that the Python that runs this can make environments."""
    return Finding(
        name="venv",
        found="python3 -m venv works" if _has_venv() else "this Python has no ensurepip, so it makes no environment",
        is_there=_has_venv(),
        is_needed=False,
        remedy=f"`make gpu` gets Python 3.12 by uv, from GitHub; or {apt('python3-venv', 'python3-dev')}",
    )


def is_environment() -> bool:
    """Return whether the Python that runs this belongs to an environment that is already made."""
    return sys.prefix != sys.base_prefix


def headers(*, is_needed: bool) -> Finding:
    """Check that Python.h is there, which Triton includes for each kernel; of an environment, that of the Python it was made from."""
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    place = Path(sysconfig.get_path("include", vars=base)) / "Python.h"
    return Finding(
        name="Python.h",
        found=str(place) if place.is_file() else f"{place} is not there: Triton compiles no kernel without it",
        is_there=place.is_file(),
        is_needed=is_needed,
        remedy=f"{apt('python3-dev')}; or `make gpu`, which gets a Python with headers by uv",
    )


def has_venv() -> bool:
    """Return whether this Python makes environments of a version that fits."""
    return python().is_there and _has_venv()


def suits() -> bool:
    """Return whether this Python can make the project's environment for a GPU: version, venv and headers."""
    return has_venv() and headers(is_needed=False).is_there


def _has_venv() -> bool:
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def compilers() -> Iterator[Finding]:
    """Yield the compilers: of C for Triton and packages without wheels, of C++ for kernels that SGLang compiles."""
    for language, programs in (("C", ("cc", "gcc", "clang")), ("C++", ("c++", "g++", "clang++"))):
        place = next(filter(None, map(shutil.which, programs)), None)
        yield Finding(
            name=f"{language} compiler",
            found=place or f"none of {', '.join(programs)} is on PATH",
            is_there=place is not None,
            remedy=apt("g++"),
        )


def _program(name: str) -> Finding:
    place = shutil.which(name)
    return Finding(name=name, found=place or "not on PATH", is_there=place is not None, remedy=apt(name))


def disk(folder: Path, least: int = LEAST_DISK) -> Finding:
    """Check the free bytes of the file system of `folder`."""
    free = shutil.disk_usage(folder).free
    return Finding(
        name="disk",
        found=f"{_gib(free)} free in {folder.absolute()}, and {_gib(least)} are needed",
        is_there=free >= least,
        remedy="`dagrpo clean --tries`, or move the project to a larger disk (and UV_CACHE_DIR with it)",
    )


def shared_memory() -> Finding:
    """Check the free bytes of /dev/shm, through which weights go to the server; a container has 64 MiB by itself."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return Finding(
        name=str(SHARED_MEMORY),
        found=f"{_gib(free)} free, and {_gib(LEAST_SHARED_MEMORY)} are needed",
        is_there=free >= LEAST_SHARED_MEMORY,
        remedy=f"{_sudo()}mount -o remount,size=16G {SHARED_MEMORY}; of a container, start it with --shm-size 16g",
    )


def cache() -> Finding:
    """Check that the cache folder can be written: packages and compiled kernels go there."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    nearest = next(each for each in (place, *place.absolute().parents) if each.exists())
    works = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return Finding(
        name="cache",
        found=str(place) if works else f"{place} cannot be written",
        is_there=works,
        remedy=f"{_sudo()}chown -R $(id -u):$(id -g) {place}; or export XDG_CACHE_HOME=FOLDER",
    )


def repository(folder: Path) -> Finding:
    """Check that git lists the project's files: the check's experiment runs in a clone of them."""
    command = ["git", "-C", str(folder), "ls-files", "--error-unmatch", "Snakefile"]
    place = folder.absolute()
    try:
        in_english = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, env=in_english, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name="repository", found=str(error), is_there=False, remedy=apt("git"))
    words = (done.stderr.strip().splitlines() or [""])[0]
    is_foreign = "dubious ownership" in words
    return Finding(
        name="repository",
        found=str(place) if done.returncode == 0 else words,
        is_there=done.returncode == 0,
        remedy=f"git config --global --add safe.directory {place}"
        if is_foreign
        else f"git -C {place} init && git -C {place} add -A",
    )


def data(mirror: str | None = None) -> Finding:
    """Check that GSM8K can be had: in the folder `mirror`, or the one that DAGRPO_DATA names, else at the hub."""
    asked = "--mirror" if mirror else "DAGRPO_DATA"
    mirror = mirror or os.environ.get("DAGRPO_DATA")
    if mirror:
        missing = [
            name
            for name in MIRRORED
            if not any(Path(mirror, f"{name}.{kind}").is_file() for kind in ("jsonl", "parquet"))
        ]
        return Finding(
            name="GSM8K",
            found=f"{', '.join(missing)} (.jsonl or .parquet) not in {mirror}, which {asked} names"
            if missing
            else mirror,
            is_there=not missing,
            remedy=f"copy the files there (docs/tasks.md), or leave out {asked} to ask the hub",
        )
    return hub()


def hub() -> Finding:
    """Check that the hub, or the mirror that HF_ENDPOINT names, has GSM8K."""
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    shown = endpoint.rpartition("@")[2]  # without a password
    try:
        with urlopen(request(f"{endpoint.rstrip('/')}/api/{DATA_SET}", method="HEAD"), timeout=SECONDS_OF_HUB):
            trouble = ""
    except HTTPError as error:
        trouble = f"answers {error.code} for {DATA_SET}"
    except UNREACHABLE as error:
        trouble = f"cannot be reached ({reason(error)})"
    return Finding(
        name="GSM8K",
        found=f"{shown} {trouble or f'has {DATA_SET}'}",
        is_there=not trouble,
        remedy="check the network or export HTTPS_PROXY; or export HF_ENDPOINT of a mirror; or give a folder with copies: "
        "export DAGRPO_DATA=FOLDER, or of the check --mirror FOLDER in GPU_CHECK",
    )


def request(address: str, *, method: str = "GET", accept: str = "*/*") -> Request:
    """Return the request for an address, whose user and password go into the header Authorization. ValueError: it is malformed.

    urllib takes them for a part of the host, and prints them. A redirection does not pass the header on.
    """
    parts = urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    made = Request(urlunsplit(parts._replace(netloc=host)), method=method, headers={"Accept": accept})
    if user:
        pair = unquote(user if ":" in user else f"{user}:")
        made.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    return made


def reason(error: Exception) -> str:
    """Return why an address cannot be read, without the address: it may hold a password, and messages of urllib may quote it."""
    if isinstance(error, HTTPError):
        return f"HTTP status {error.code}"
    cause = getattr(error, "reason", error)
    is_of_system = isinstance(cause, OSError) and not isinstance(cause, URLError)
    return f"{type(cause).__name__}: {cause}" if is_of_system else type(error).__name__


def apt(*packages: str) -> str:
    """Return the command that installs packages of Ubuntu and Debian, for this user."""
    return f"{_sudo()}apt-get update && {_sudo()}apt-get install -y {' '.join(packages)}"


def _sudo() -> str:
    return "" if os.geteuid() == 0 else "sudo "


def _version(text: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None where it has none."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0] or "0"
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _gib(count: float) -> str:
    return f"{count / GIBIBYTE:.2f} GiB"


if __name__ == "__main__":
    main()
