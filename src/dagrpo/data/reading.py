"""Rows of JSONL, JSON, CSV and Parquet files in bounded memory.

A source may hold every row many times over: of copies only the first is given, and Arrow finds most of them before
any becomes a Python object. One digest covers the pictures that a raw file names: a card has it under `<file>#<column>`, beside the
digest of the file itself, which does not cover the pictures.
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagrpo.core.errors import UserError
from dagrpo.core.escape import sentence
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import Source, raw_row
from dagrpo.utils.tables import BUFFER_BYTES, decodes_to_more

BATCH_ROWS = 256  # of rows that may hold pictures
COPIES_BATCH_ROWS = 50_000  # of rows that repeat: the more, the more copies are found at once
LONGEST_LINE = 64 << 20  # bytes
LARGEST_FILE = 128 << 20  # bytes of a JSON or CSV file, which is read at once and may take 100 times as much memory
MOST_BYTES = 4 << 30  # of a parquet file's columns, decoded, or of a compressed file
MOST_BLANK = 1 << 20  # bytes before the first row
ROW_BYTES = 200  # that a row takes in memory even if all its values are null, of which a file stores nothing

Numbered = tuple[int, Mapping[str, Any]]  # row number from 1, column -> value
Identity = tuple[str, ...]  # what copies of a row have in common


class Reader:
    """Reader of the files of one split. Use one per split: rows of two splits may be copies of each other."""

    def __init__(self, source: Source) -> None:
        self.read = 0  # rows, copies included
        self.columns_of_paths: set[str] = set()  # as in Row, of all rows given
        self._source = source
        self._seen: set[Identity] = set()

    def rows(self, path: Path, label: str) -> Iterator[RawRow]:
        """Yield the rows of one file without copies. Raises UserError, which names the file and the row, if one is damaged."""
        for count, numbered in self._batches(path, label):
            self.read += count
            for number, values in numbered:
                row = raw_row(self._source, label, path.parent, number, values, self.columns_of_paths)
                if self._is_first(row):
                    yield row

    def _batches(self, path: Path, label: str) -> Iterator[tuple[int, Sequence[Numbered]]]:
        """Yield the number of rows of each part of the file, and the rows that Arrow does not find to be copies."""
        if path.suffix == ".parquet":
            for start, batch in _parquet(self._source, path, label):
                yield batch.num_rows, _numbered(self._source, batch, start, self._seen)
        elif path.suffix in (".jsonl", ".gz"):
            yield from ((1, [numbered]) for numbered in _lines(self._source, path, label))
        elif path.suffix in (".json", ".csv"):
            yield from ((1, [numbered]) for numbered in enumerate(_whole(path, label), start=1))
        else:
            raise UserError(f"{label} is neither .jsonl, .json, .csv nor .parquet: convert it to one of them.")

    def _is_first(self, row: RawRow) -> bool:
        if not self._source.copies:
            return True
        identity = tuple(row.text(field) for field in self._source.copies)
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def _lines(source: Source, path: Path, label: str) -> Iterator[Numbered]:
    try:
        # Bytes: a text may hold other line separators.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if not file.read(MOST_BLANK).strip():
                raise UserError(f"{label} is empty: replace it with a complete copy of {source.repository}.")
            file.seek(0)
            for number, line in enumerate(_whole_lines(file, label), start=1):
                yield number, _parse(label, number, line)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{label} is damaged: replace it with a complete copy of {source.repository}.") from None


def _whole(path: Path, label: str) -> list[dict[str, Any]]:
    """Return the rows of a JSON list or of a CSV file; a row that is a list has the columns 0, 1, ..."""
    if path.stat().st_size > LARGEST_FILE:
        raise UserError(f"{label} has more than {LARGEST_FILE >> 20} MiB: convert it to .jsonl or .parquet.")
    csv.field_size_limit(LARGEST_FILE)
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text), strict=True)) if path.suffix == ".csv" else json.loads(text)
    except (ValueError, RecursionError, csv.Error) as error:
        raise UserError(
            sentence(f"{label} is not valid {path.suffix[1:].upper()} ({error}): correct the file.")
        ) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict | list) for row in rows):
        raise UserError(f"{label} is not a list of rows: correct the file.")
    return [row if isinstance(row, dict) else {str(n): value for n, value in enumerate(row)} for row in rows]


def _whole_lines(file: BinaryIO | gzip.GzipFile, label: str) -> Iterator[bytes]:
    """Yield the lines one by one. Raises UserError for a line, or unpacked lines, that would fill the memory."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UserError(f"{label}, line {number} has more than {LONGEST_LINE >> 20} MiB: correct the file.")
        if isinstance(file, gzip.GzipFile) and file.tell() > MOST_BYTES:
            raise UserError(
                f"{label} has more than {MOST_BYTES / (1 << 30):.3g} GiB when unpacked: unpack it to .jsonl."
            )
        yield line


def _parse(label: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, or a number of over 4,300 digits
        fault = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(sentence(f"{label}, line {number} is not valid JSON ({fault}): correct the file.")) from None
    if not isinstance(values, dict):
        raise UserError(
            f"{label}, line {number} is {type(values).__name__}, not an object with named fields: correct the file."
        )
    return values


def _parquet(source: Source, path: Path, label: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns that the source names, a part of the file at a time, with the number of its first row."""
    size = COPIES_BATCH_ROWS if source.copies else BATCH_ROWS
    top_level = {name.partition(".")[0] for names in source.columns.values() for name in names}
    start = 1
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES) as file:
            columns = [name for name in file.schema_arrow.names if name in top_level]
            _require_once(columns, label)
            _require_size(path, file.metadata.num_rows, columns, label)
            for batch in file.iter_batches(size, columns=columns):
                batch.validate(full=True)  # texts that are not UTF-8, offsets that lead nowhere
                yield start, batch
                start += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: the name of a column
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        fault = f"{label} is not a Parquet file that can be read ({reason})"
        raise UserError(sentence(f"{fault}: replace it with a complete copy of {source.repository}.")) from None


def _require_once(columns: Sequence[str], label: str) -> None:
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{label} has two columns called `{twice}`: rename one of them.")


def _require_size(path: Path, rows: int, columns: Sequence[str], label: str) -> None:
    """Raise UserError for a small file that would fill the memory when unpacked."""
    if rows * ROW_BYTES > MOST_BYTES or decodes_to_more(path, MOST_BYTES, columns):
        most = f"{MOST_BYTES / (1 << 30):.3g}"
        names = ", ".join(f"`{name}`" for name in columns)
        raise UserError(
            sentence(f"{label} has more than {most} GiB in the columns {names}: split it, or leave rows out.")
        )


def _numbered(source: Source, batch: pa.RecordBatch, start: int, seen: Set[Identity]) -> list[Numbered]:
    if not source.copies:
        return list(enumerate(batch.to_pylist(), start))
    unseen = _unseen(source, batch, seen)
    return [
        (start + index, row)
        for index, row in zip(unseen, batch.take(pa.array(unseen, pa.int64())).to_pylist(), strict=True)
    ]


def _unseen(source: Source, batch: pa.RecordBatch, seen: Set[Identity]) -> Sequence[int]:
    """Return the rows that are copies of no earlier row; all of them if Arrow cannot compare them."""
    try:
        keys = {field: _column_at(batch, source.columns[field]) for field in source.copies}
        table = pa.table({**keys, "row": pa.array(range(batch.num_rows))})
        groups = table.group_by(list(keys), use_threads=False).aggregate([("row", "min")])
    except (KeyError, pa.ArrowException):  # a row without the field: reading it as Python objects says which
        return range(batch.num_rows)
    identities = zip(*(groups[field].to_pylist() for field in keys), strict=True)
    first = zip(identities, groups["row_min"].to_pylist(), strict=True)
    return sorted(row for identity, row in first if identity not in seen)


def _column_at(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the column at the first dotted path that the batch has. Raises KeyError without one."""
    name = next((name for name in names if name.partition(".")[0] in batch.schema.names), names[0])
    head, *parts = name.split(".")
    column = batch[head]
    for part in parts:
        column = pc.list_element(column, int(part)) if part.isdecimal() else pc.struct_field(column, part)
    return column


_MARK = "#"
_UNREADABLE = bytes(32)  # in place of the digest of a picture's content


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureDigest:
    """Digest and size of all pictures of a column."""

    sha256: str
    bytes: int  # of the pictures
    names: tuple[str, ...]  # their paths, from the folder of the file that names them


def name_in_card(file: str, column: str) -> str:
    """Return the name of the pictures of a column among a card's raw files."""
    return f"{file}{_MARK}{column}"


def file_and_column(name: str) -> tuple[str, str] | None:
    """Return the file and the column of a name by `name_in_card`; None for a plain file's name."""
    file, mark, column = name.rpartition(_MARK)
    return (file, column) if mark and file and column else None


def picture_digest(path: Path, column: str) -> PictureDigest:
    """Return the digest over names and bytes of all pictures of a column, in row order, one in memory at a time.

    It covers the whole file, even if a task reads only a part. An unreadable picture counts as one without content, so that the digest
    changes. Raises UserError if the file of rows is damaged.
    """
    rows = Source(
        repository="its data set",
        revision="",
        hub_splits={},
        mirror_files={},
        columns={"pictures": (column,)},
        optional=("pictures",),
    )
    digest, size, names = hashlib.sha256(), 0, dict[str, None]()
    for row in Reader(rows).rows(path, str(path)):
        for name in row.pictures_named("pictures"):
            content = _content(row, name)
            digest.update(hashlib.sha256(name.encode(errors="surrogatepass")).digest())
            digest.update(_UNREADABLE if content is None else hashlib.sha256(content).digest())
            size += len(content or b"")
            names[name] = None
    return PictureDigest(sha256=digest.hexdigest(), bytes=size, names=tuple(names))


def _content(row: RawRow, name: str) -> bytes | None:
    try:
        return row.picture_beside("pictures", name)
    except UserError:
        return None
