"""JSON with a digest of its content, to detect damage.

Against failing disks and interrupted copies, not against deliberate changes with a matching digest.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.errors import UserError
from dagrpo.files import write_json

SEAL = "sha256"


class Damaged(UserError):
    """An unfinished run's file that differs from what was written; the same command makes it again."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path} {fault}: run the same command again, which goes on from what is whole.")
        self.path, self.fault = path, fault
        self.what = f"{path} {fault}"


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its digest, atomically."""
    write_json(path, {**content, SEAL: _digest(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read JSON written by `write_sealed`. Raises Damaged if it is missing or fails its digest."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, "is missing") from None
    except (ValueError, OSError):
        raise Damaged(path, "is damaged") from None
    if not isinstance(content, dict) or content.pop(SEAL, None) != _digest(content):
        raise Damaged(path, "is damaged")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    """Return the digest of escaped JSON: a text may hold half of a surrogate pair, which is not UTF-8."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
