"""Checks of a GPU: its driver, capability and memory."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dagrpo.cli.doctor.finding import Finding, apt, check, version_of

LEAST_CAPABILITY = (8, 0)  # for bfloat16, and for attention that keeps no matrix of all pairs
LEAST_MEBIBYTES = 22_000  # of a GPU, for `make gpu-check`: an L4 or an RTX 4090
SECONDS = 20.0  # for the driver to answer
FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap", "uuid")
VISIBLE = "CUDA_VISIBLE_DEVICES"
CUDA = (13, 0)  # of torch in requirements/gpu.lock
LEAST_DRIVER = 580  # of that CUDA, on Linux: CUDA Toolkit release notes, table of driver versions
COMPATIBLE_DRIVER = 535  # the oldest long-lived branch that cuda-compat works on
CONSUMER = ("geforce", "titan")  # cards that cuda-compat refuses
INSTALLED_COMPAT = (Path("/usr/local/cuda/compat"), Path(f"/usr/local/cuda-{CUDA[0]}.{CUDA[1]}/compat"))


class Card(NamedTuple):
    """A GPU as nvidia-smi lists it; an unknown value is None."""

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


def cards() -> list[Card]:
    """Return the GPUs that the driver lists; [] without a driver."""
    fields: Sequence[str] = FIELDS
    answer = _query(fields)
    if answer is None:  # an old driver refuses the whole query for the field compute_cap
        fields = [field for field in FIELDS if field != "compute_cap"]
        answer = _query(fields)
    rows = [[cell.strip() for cell in line.split(",")] for line in (answer or "").splitlines()]
    return [_of_row(dict(zip(fields, row, strict=False))) for row in rows if row[0].isdecimal()]


def _query(fields: Sequence[str]) -> str | None:
    """Return nvidia-smi's output for these fields; None if it fails."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _of_row(row: Mapping[str, str]) -> Card:
    """Parse the GPU of one line, by field; a field may be missing or hold words such as [N/A]."""
    memory = row.get("memory.total", "")
    return Card(
        number=row["index"],
        name=row.get("name", "GPU"),
        mebibytes=int(memory) if memory.isdecimal() else None,
        driver=row.get("driver_version", "unknown"),
        capability=version_of(row.get("compute_cap", "")),
        uuid=row.get("uuid", ""),
    )


def visible(cards: Sequence[Card]) -> list[Card]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to a process, by index or the beginning of a UUID; all if it is not set."""
    if VISIBLE not in os.environ:
        return list(cards)
    listed = [name.strip() for name in os.environ[VISIBLE].split(",")]
    names = list(takewhile(lambda name: name not in {"", "-1"}, listed))  # as CUDA reads it
    named = [card for name in names for card in cards if card.number == name or _is_uuid(name, card)]
    slices = [name for name in names if name.startswith("MIG-")]  # nvidia-smi lists the whole GPU, not the slice
    return [*dict.fromkeys(named), *(Card(name, "a slice", None, cards[0].driver, None) for name in slices if cards)]


def _is_uuid(name: str, card: Card) -> bool:
    return name.startswith("GPU-") and card.uuid.startswith(name)


def check_cards(cards: Sequence[Card], *, needs_memory: bool = False) -> Iterator[Finding]:
    """Yield the driver's version, then each GPU that CUDA_VISIBLE_DEVICES leaves. One that fits is enough.

    `needs_memory`: a GPU of less than LEAST_MEBIBYTES does not fit.
    """
    seen = visible(cards)
    if not cards:
        remedy = f"with a GPU in the machine: {_driver_remedy()}; of a container, start it with --gpus all"
        yield check("GPU", False, "", "nvidia-smi lists none", remedy)
        return
    yield driver((seen or cards)[0])
    if not seen:
        numbers = ",".join(card.number for card in cards)
        fault = f"{VISIBLE}={os.environ[VISIBLE]} names none of those that nvidia-smi lists: {numbers}"
        yield check("GPU", False, "", fault, f"unset {VISIBLE}, or export {VISIBLE}={numbers}")
    fitting = [card.number for card in seen if not (card.is_old or (card.is_small and needs_memory))]
    for card in seen:
        yield _card(card, fitting, needs_memory=needs_memory)


def driver(card: Card) -> Finding:
    """Check that the driver runs the lock's CUDA, by itself or through cuda-compat."""
    version = version_of(card.driver)
    major = LEAST_DRIVER if version is None else version[0]  # an unknown version is not a failure
    cuda = f"CUDA {CUDA[0]}.{CUDA[1]}"
    can_use_compat = major >= COMPATIBLE_DRIVER and not any(word in card.name.lower() for word in CONSUMER)
    compat = _compat() if can_use_compat and major < LEAST_DRIVER else None
    detail = f"{card.driver} for {cuda}{'' if compat is None else f', through {compat}'}"
    fault = f"{card.driver}, and {cuda} of requirements/gpu.lock needs {LEAST_DRIVER} or newer"
    remedy = f"{_driver_remedy()}{_compat_remedy() if can_use_compat else ''}"
    return check("driver", major >= LEAST_DRIVER or compat is not None, detail, fault, remedy)


def _driver_remedy() -> str:
    return f"{apt(f'nvidia-driver-{LEAST_DRIVER}-open')}, then reboot (of a container or a rented machine: on its host, or take another)"


def _compat_remedy() -> str:
    """Return a fix that keeps this driver: an installed cuda-compat, else one from NVIDIA's repository."""
    installed = next(filter(_has_driver, INSTALLED_COMPAT), None)
    package = f"cuda-compat-{CUDA[0]}-{CUDA[1]}"
    install = "" if installed else f"{apt(package)} from NVIDIA's repository, then "
    return (
        f"; or, as this is no GeForce card, keep the driver: {install}"
        f"export LD_LIBRARY_PATH={installed or INSTALLED_COMPAT[1]}:$LD_LIBRARY_PATH"
    )


def _compat() -> Path | None:
    """Return the folder whose libcuda programs load, if it is of a new enough driver.

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
    """Return True if a folder's libcuda.so.1 is of a driver new enough for the lock's CUDA."""
    version = (folder / "libcuda.so.1").resolve().name.removeprefix("libcuda.so.")
    return (version_of(version) or (0, 0))[0] >= LEAST_DRIVER


def _card(card: Card, fitting: Sequence[str], *, needs_memory: bool) -> Finding:
    """Check the capability and the memory of one GPU; `fitting`: the numbers of the GPUs that fit."""
    memory = "unknown memory" if card.mebibytes is None else f"{card.mebibytes:,} MiB"
    capability = "unknown" if card.capability is None else ".".join(map(str, card.capability))
    troubles = []
    if card.is_old:
        troubles.append(f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} (Ampere) or newer is needed")
    if card.is_small:
        why = "needed" if needs_memory else "advised, and needed by make gpu-check"
        troubles.append(f"{LEAST_MEBIBYTES:,} MiB are {why}")
    is_unfit = card.number not in fitting
    if not is_unfit:
        remedy = "choose a model that fits: `dagrpo plan` says what an experiment takes"
    elif fitting:
        remedy = f"leave it out: export {VISIBLE}={','.join(fitting)}"
    else:
        remedy = "take an A100, H100, H200, L4, L40S, RTX 3090, RTX 4090 or newer; `make run` needs no GPU"
    detail = "; ".join([f"{card.name}, {memory}, compute capability {capability}", *troubles])
    return check(f"GPU {card.number}", not troubles, detail, detail, remedy, needed=is_unfit and not fitting)
