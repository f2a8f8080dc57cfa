"""JSON with a digest of its content, to detect damage.

Against failing disks and interrupted copies, not against deliberate changes with a matching digest.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.files import write_json

CHECKSUM = "sha256"


class Damaged(UserError):
    """An unfinished run's file that differs from what was written; the same command makes it again."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path} {fault}: run the same command again, which goes on from what is whole.")
        self.path, self.fault = path, fault
        self.what = f"{path} {fault}"


def write_checksummed(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its digest, atomically."""
    write_json(path, with_checksum(content))


def read_checksummed(path: Path) -> dict[str, Any]:
    """Read JSON written by `write_checksummed`. Raises Damaged if it is missing or fails its digest."""
    try:
        return without_checksum(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, "is missing") from None
    except (ValueError, OSError):
        raise Damaged(path, "is damaged") from None


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content and its digest as one object."""
    return {**content, CHECKSUM: _digest(content)}


def without_checksum(value: Any) -> dict[str, Any]:
    """Return the content of an object that `sealed` returned. Raises ValueError if it has changed since."""
    if not isinstance(value, dict) or value.pop(CHECKSUM, None) != _digest(value):
        raise ValueError("the digest does not fit")
    return value


def _digest(content: Mapping[str, Any]) -> str:
    """Return the digest of escaped JSON: a text may hold half of a surrogate pair, which is not UTF-8."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
