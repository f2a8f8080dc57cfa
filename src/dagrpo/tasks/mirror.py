"""Raw rows from a folder with local copies of the hub's data sets, in JSONL: <mirror>/gsm8k/train.jsonl, ..."""

import hashlib
import json
from pathlib import Path
from typing import Any

from dagrpo.params.data import Data
from dagrpo.tasks.source import Raw, Row, Source, require_rows, to_row


def read_mirror(source: Source, folder: Path, params: Data) -> Raw:
    """Every row and every file's sha256. ValueError names the file and the line that is missing, damaged or no row."""
    if not folder.is_dir():
        raise ValueError(
            f"data.mirror is {folder}, which is not a folder: correct it, or set it to null to use the hub."
        )
    limits = {"train": params.max_train, "test": params.max_test}
    rows: dict[str, list[Row]] = {}
    files: dict[str, str] = {}
    for split, name in source.mirror_files.items():
        content = _content(folder / name, source)
        rows[split] = _rows(source, folder / name, content)
        require_rows(source, split, str(folder / name), len(rows[split]), limits[split])
        files[name] = hashlib.sha256(content).hexdigest()
    return Raw(rows=rows, files=files, origin="mirror", revision=None)


def _content(path: Path, source: Source) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: put a copy of {source.repository} there, or correct data.mirror."
        ) from None
    if not content.strip():
        raise ValueError(f"{path} is empty: replace it with a complete copy of {source.repository}.")
    return content


def _rows(source: Source, path: Path, content: bytes) -> list[Row]:
    lines = content.removesuffix(b"\n").split(b"\n")  # bytes: a text may hold other line separators
    return [to_row(source, str(path), number, _parse(path, number, line)) for number, line in enumerate(lines, start=1)]


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is not valid JSON ({error}): correct the file.") from None
    if not isinstance(values, dict):
        raise ValueError(
            f"{path}, line {number} is {type(values).__name__}, not an object with named fields: correct the file."
        )
    return values
