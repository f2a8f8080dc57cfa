"""JSON that carries the digest of its own content, so that damage is noticed when it is read.

Against failing disks and interrupted copies, not against somebody who writes a digest that fits.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.errors import UserError
from dagrpo.files import MOST_JSON_BYTES, read_regular, write_json

SEAL = "sha256"


class Damaged(UserError):
    """A file of an unfinished run is not what was written; the same command makes it again."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path} {fault}: run the same command again, which goes on from what is whole.")
        self.path, self.fault = path, fault
        self.what = f"{path} {fault}"


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with its seal, atomically."""
    write_json(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """What was given to `write_sealed`. Damaged: it is missing, or not that."""
    try:
        return unsealed(json.loads(read_regular(path, MOST_JSON_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, "is missing") from None
    except (ValueError, RecursionError, OSError):  # no file at all, or one without an end
        raise Damaged(path, "is damaged") from None


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content and its digest, as one object."""
    return {**content, SEAL: _digest(content)}


def unsealed(value: Any) -> dict[str, Any]:
    """The content of what `sealed` gave; ValueError where it has changed since."""
    if not isinstance(value, dict) or value.pop(SEAL, None) != _digest(value):
        raise ValueError("the digest does not fit")
    return value


def _digest(content: Mapping[str, Any]) -> str:
    """Of escaped JSON: a text may hold half of a surrogate pair, which is no UTF-8."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
