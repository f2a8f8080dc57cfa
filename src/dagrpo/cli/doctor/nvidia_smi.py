"""GPUs listed by nvidia-smi, and those that CUDA_VISIBLE_DEVICES leaves."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from dagrpo.cli.doctor.finding import version_of

LEAST_CAPABILITY = (8, 0)  # for bfloat16, and for attention that keeps no matrix of all pairs
LEAST_MEBIBYTES = 22_000  # of a GPU, for `make gpu-check`: an L4 or an RTX 4090
SECONDS = 20.0  # for the driver to answer
FIELDS = ("index", "name", "memory.total", "driver_version", "compute_cap", "uuid")
VISIBLE = "CUDA_VISIBLE_DEVICES"


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
    """Return the GPUs that the driver lists; [] without a driver, or if it lists none."""
    fields: Sequence[str] = FIELDS
    answer = _asked(fields)
    if answer is None:  # an old driver refuses the whole query for the field compute_cap
        fields = [field for field in FIELDS if field != "compute_cap"]
        answer = _asked(fields)
    rows = [[cell.strip() for cell in line.split(",")] for line in (answer or "").splitlines()]
    return [_of_row(dict(zip(fields, row, strict=False))) for row in rows if row[0].isdecimal()]


def _asked(fields: Sequence[str]) -> str | None:
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


def visible(found: Sequence[Card]) -> list[Card]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to a process, by index or the beginning of a UUID; all if it is not set."""
    if VISIBLE not in os.environ:
        return list(found)
    listed = [name.strip() for name in os.environ[VISIBLE].split(",")]
    names = list(takewhile(lambda name: name not in {"", "-1"}, listed))  # as CUDA reads it
    named = [card for name in names for card in found if name == card.number or _is_uuid(name, card)]
    slices = [name for name in names if name.startswith("MIG-")]  # nvidia-smi lists the whole GPU, not the slice
    return [*dict.fromkeys(named), *(Card(name, "a slice", None, found[0].driver, None) for name in slices if found)]


def _is_uuid(name: str, card: Card) -> bool:
    return name.startswith("GPU-") and card.uuid.startswith(name)
