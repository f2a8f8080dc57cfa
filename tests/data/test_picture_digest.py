"""The digest over the pictures that a file of rows names."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pictures import picture

from dagrpo.core.errors import UserError
from dagrpo.data.reading import file_and_column, name_in_card, picture_digest

RED, BLUE = picture(colour="red"), picture(colour="blue")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A red picture and a blue one."""
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    return tmp_path


def _rows(folder: Path, *values: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"images": value}) + "\n" for value in values))
    return path


def test_it_is_over_names_and_bytes_in_the_order_of_the_rows(folder: Path) -> None:
    found = picture_digest(_rows(folder, "red.png", ["blue.png", {"path": "red.png"}]), "images")
    assert found.sha256 == _digest(b"red.png", RED, b"blue.png", BLUE, b"red.png", RED)
    assert found.bytes == 2 * len(RED) + len(BLUE)
    swapped = picture_digest(_rows(folder, "blue.png", ["red.png", "red.png"]), "images")
    assert swapped.sha256 != found.sha256


def test_a_renamed_picture_and_a_missing_one_are_another_digest(folder: Path) -> None:
    rows = _rows(folder, "red.png")
    whole = picture_digest(rows, "images").sha256
    (folder / "same.png").write_bytes(RED)
    assert picture_digest(_rows(folder, "same.png"), "images").sha256 != whole
    (folder / "red.png").unlink()
    missing = picture_digest(_rows(folder, "red.png"), "images")
    assert (missing.sha256 != whole, missing.bytes) == (True, 0)


def test_a_path_out_of_the_folder_is_not_read(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    assert picture_digest(_rows(below, "../red.png"), "images").bytes == 0


def test_a_picture_that_the_rows_hold_is_in_the_digest_of_their_file_alone(folder: Path) -> None:
    pq.write_table(
        pa.table({"images": [[{"bytes": RED, "path": "x.png"}, {"bytes": None, "path": "blue.png"}]]}),
        folder / "rows.parquet",
    )
    found = picture_digest(folder / "rows.parquet", "images")
    assert (found.sha256, found.bytes) == (_digest(b"blue.png", BLUE), len(BLUE))


def test_a_damaged_file_of_rows_is_named(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1 is not valid JSON"):
        picture_digest(folder / "rows.jsonl", "images")


def test_a_name_in_a_card_leads_back_to_file_and_column() -> None:
    assert file_and_column(name_in_card("geo3k/train.jsonl", "images")) == ("geo3k/train.jsonl", "images")
    assert file_and_column(name_in_card("odd#name.jsonl", "images")) == ("odd#name.jsonl", "images")
    assert file_and_column("geo3k/train.jsonl") is None
