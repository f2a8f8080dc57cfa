"""Checks of a GPU: its driver, capability and memory."""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from dagrpo_doctor.finding import Finding, apt, check, version_of

LEAST_CAPABILITY = (8, 0)  # for bfloat16, and for attention that keeps no matrix of all pairs
LEAST_MEBIBYTES = 22_000  # of a GPU, for `make gpu-check`: an L4 or an RTX 4090
SECONDS = 20.0  # for the driver to answer
FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap", "uuid")
VISIBLE = "CUDA_VISIBLE_DEVICES"
CUDA = (13, 0)  # of torch in requirements/gpu.lock
LEAST_DRIVER = 580  # of that CUDA, on Linux: CUDA Toolkit release notes, table of driver versions
COMPATIBLE_DRIVER = 535  # the oldest long-lived branch that cuda-compat works on
CONSUMER = ("geforce", "titan")  # cards that cuda-compat refuses
DRIVER_REMEDY = f"{apt(f'nvidia-driver-{LEAST_DRIVER}-open')}, then reboot (of a container or rented machine: on its host, or take another)"
COMPAT_REMEDY = (
    f"; or, as this is no GeForce card, keep the driver: {apt(f'cuda-compat-{CUDA[0]}-{CUDA[1]}')} from NVIDIA's repository, then "
    f"export LD_LIBRARY_PATH=/usr/local/cuda-{CUDA[0]}.{CUDA[1]}/compat:$LD_LIBRARY_PATH"
)


class Card(NamedTuple):
    """A GPU as nvidia-smi lists it; an unknown value is None."""

    number: str
    name: str
    mebibytes: int | None  # None: it shares the machine's memory
    driver: str  # "580.95.05"
    capability: tuple[int, int] | None  # (9, 0); None: nvidia-smi does not say
    uuid: str = ""  # "GPU-5f1c..."

    @property
    def is_old(self) -> bool:
        return self.capability is not None and self.capability < LEAST_CAPABILITY

    @property
    def is_small(self) -> bool:
        return self.mebibytes is not None and self.mebibytes < LEAST_MEBIBYTES


def cards() -> list[Card]:
    """Return the GPUs that the driver lists; [] without a driver."""
    for fields in (FIELDS, [field for field in FIELDS if field != "compute_cap"]):  # an old driver refuses that one
        query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
        return [_of_row(dict(zip(fields, row, strict=False))) for row in rows if row[0].isdecimal()]
    return []


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
    named = [
        card
        for name in names
        for card in cards
        if card.number == name or (name.startswith("GPU-") and card.uuid.startswith(name))
    ]
    slices = [name for name in names if name.startswith("MIG-")]  # nvidia-smi lists the whole GPU, not the slice
    return [*dict.fromkeys(named), *(Card(name, "a slice", None, cards[0].driver, None) for name in slices if cards)]


def check_cards(cards: Sequence[Card], *, needs_memory: bool = False) -> Iterator[Finding]:
    """Yield the driver's version, then each GPU that CUDA_VISIBLE_DEVICES leaves. One that fits is enough.

    `needs_memory`: a GPU of less than LEAST_MEBIBYTES does not fit.
    """
    seen = visible(cards)
    if not cards:
        remedy = f"with a GPU in the machine: {DRIVER_REMEDY}; of a container, start it with --gpus all"
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
    is_compat = major < LEAST_DRIVER and can_use_compat and _loaded_cuda() >= CUDA
    detail = f"{card.driver} for {cuda}{', through cuda-compat' if is_compat else ''}"
    fault = f"{card.driver}, and {cuda} of requirements/gpu.lock needs {LEAST_DRIVER} or newer"
    remedy = f"{DRIVER_REMEDY}{COMPAT_REMEDY if can_use_compat else ''}"
    return check("driver", major >= LEAST_DRIVER or is_compat, detail, fault, remedy)


def _loaded_cuda() -> tuple[int, int]:
    """Return the CUDA of the libcuda that programs load: of the driver, or of cuda-compat if the loader finds it first; else (0, 0)."""
    version = ctypes.c_int()  # 1000 major + 10 minor
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return (0, 0)
    return (0, 0) if failed else (version.value // 1000, version.value % 1000 // 10)


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
