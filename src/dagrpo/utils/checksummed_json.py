"""JSON with a digest of its content, to detect damage.

It detects failing disks and interrupted copies, not deliberate changes with a matching digest.
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
    """Error for a damaged file of an unfinished run; the same command makes the file again."""

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
    return {**content, CHECKSUM: escaped_digest(content)}


def without_checksum(value: Any) -> dict[str, Any]:
    """Return the content of an object that `with_checksum` returned. Raises ValueError if it has changed since."""
    if not isinstance(value, dict) or value.pop(CHECKSUM, None) != escaped_digest(value):
        raise ValueError("the digest does not fit")
    return value


def escaped_digest(content: Mapping[str, Any]) -> str:
    """Return the digest of escaped JSON: a text may hold half of a surrogate pair, which is not UTF-8."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
