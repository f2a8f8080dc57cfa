"""The baseline of a machine: what it is, what was measured before, its tables."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from benchmarks.gpu import table

from dagrpo.utils.environment import environment
from dagrpo.utils.files import read_json, write_json, write_text
from dagrpo_doctor import gpus

ROOT = Path(__file__).parents[2]
SAME = ("rehearsal", "machine", "versions")  # and the commit, in baselines that can be one


def write(baseline: Mapping[str, Any], file: Path, tables: Path, docs: Path | None) -> str:
    """Write the baseline and its tables, also into the page `docs` where one is given. Returns the tables."""
    write_json(file, baseline)
    text = table.markdown(baseline)
    write_text(tables, f"{text}\n")
    if docs is not None:
        table.put_into(docs, text)
    return text


def described(*, rehearse: bool) -> dict[str, Any]:
    """Return the machine, the versions and the commit."""
    cards = gpus.visible(gpus.cards())
    first = cards[0] if cards else gpus.Card("0", "no GPU (a rehearsal)", 0, "none", (0, 0))
    versions = {key: version for key, version in environment(on_gpu=True).items() if key not in {"machine", "device"}}
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rehearsal": rehearse,
        "machine": {
            "device": first.name,
            "devices": len(cards),
            "mebibytes": first.mebibytes,
            "driver": first.driver,
            "processors": os.cpu_count(),
        },
        "versions": versions,
        "commit": commit,
    }


def smallest_memory() -> float:
    """Return the GiB of the smallest GPU in use, as nvidia-smi counts them; 0 without one. Unknown: it shares the machine's."""
    shared = psutil.virtual_memory().total >> 20
    used = gpus.visible(gpus.cards())
    return min((shared if card.mebibytes is None else card.mebibytes for card in used), default=0) / 1024


def before(file: Path, now: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """Return the earlier baseline without these `parts`, which are measured again; {} of another machine, version or commit."""
    earlier: dict[str, Any] = read_json(file) if file.is_file() else {}
    if any(earlier.get(key) != now[key] for key in SAME) or _commit(earlier) != _commit(now):
        return {}
    kept = {name: part for name, part in earlier["parts"].items() if name not in {"setting up", *parts}}
    return {"parts": kept} | {name: earlier.get(name) for name in kept}


def _commit(baseline: Mapping[str, Any]) -> str:
    """Return the commit; the check's own tables in docs/benchmarks.md make it dirty."""
    return str(baseline["commit"]).removesuffix("-dirty")
