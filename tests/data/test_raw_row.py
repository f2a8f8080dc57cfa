"""The fields of one raw row: dotted paths, kinds of value, pictures, and every fault in one form."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dagrpo.core.errors import UserError
from dagrpo.data.raw_row import LARGEST_PICTURE, RawRow, value_at

NESTED = {
    "prompt": [{"role": "user", "content": "Find x."}],
    "reward_model": {"ground_truth": "34", "style": "rule"},
    "a.b": "dotted",
    "numbers": [7, 8],
}


def _row(value: Any, folder: Path = Path()) -> RawRow:
    return RawRow(file="sums.jsonl", number=4, fields={"it": value}, columns={"it": "its.column"}, folder=folder)


def test_a_dotted_path_leads_to_a_value_or_is_a_key_error() -> None:
    found = {"prompt.0.content": "Find x.", "reward_model.ground_truth": "34", "a.b": "dotted", "numbers.1": 8}
    assert {path: value_at(NESTED, path) for path in found} == found
    for path in ("answer", "prompt.1.content", "prompt.0.text", "prompt.x", "a", "numbers.0.0", "a.b.c"):
        with pytest.raises(KeyError):
            value_at(NESTED, path)


@given(st.recursive(st.none() | st.text(), lambda part: st.lists(part) | st.dictionaries(st.text(), part)), st.text())
def test_no_path_through_any_value_raises_anything_but_a_key_error(value: object, path: str) -> None:
    values = value if isinstance(value, dict) else {"it": value}
    try:
        value_at(values, path)
    except KeyError:
        assert path not in values


@pytest.mark.parametrize(
    ("value", "text"), [("34", "34"), (34, "34"), (22 * 10**21, "22000000000000000000000"), (" a ", " a ")]
)
def test_a_text_stays_as_it_is_and_an_integer_is_written_out(value: object, text: str) -> None:
    assert _row(value).text("it") == text


def test_a_share_is_a_number_from_0_to_1_or_unknown() -> None:
    assert [_row(value).share("it") for value in (0, 0.25, 1, None)] == [0.0, 0.25, 1.0, None]


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        ("text", None, "is NoneType, not text"),
        ("text", 2.5, "is float, not text"),
        ("text", True, "is bool, not text"),
        ("text", ["a"], "is list, not text"),
        ("text", " \n", "is empty"),
        ("text", "\ud83e", "holds half of a surrogate pair"),
        ("text", "x" * 1_000_001, "has 1,000,001 characters, which is more than 1,000,000"),
        ("texts", ["a", "\ud83e"], "holds half of a surrogate pair"),
        *(("integer", value, "is .*, not an integer") for value in ("3", 3.0, True, None, 2**63, -(10**400), 1 << 20_000)),
        *(("integers", value, "is .*, not a list of int") for value in ([1, "2"], [1, True], [], 3, None, [1 << 20_000])),
        ("integers", [1] * 1001, "holds 1,001 integers"),
        *(("share", value, "is .*, not a number from 0 to 1") for value in (-0.1, 1.1, float("nan"), float("inf"), "0.5", True)),
    ],
    ids=lambda value: str(type(value)),
)  # fmt: skip
def test_another_kind_of_value_names_the_file_the_row_and_the_files_column(kind: str, value: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"^sums\.jsonl, row 4, field `its\.column` {fault}.*: correct the file\.$"):
        getattr(_row(value), kind)("it")


def test_pictures_come_from_bytes_or_from_a_path_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (2, 3), "red").save(tmp_path / "figures/1.png")
    content = (tmp_path / "figures/1.png").read_bytes()
    for value in (
        "figures/1.png",
        ["figures/1.png"],
        {"bytes": None, "path": "figures/1.png"},
        [{"bytes": content, "path": None}],
    ):
        assert _row(value, tmp_path).images("it") == (content,)
    assert _row([], tmp_path).images("it") == ()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "holds neither the bytes of a picture nor the path of one"),
        ([{"bytes": None, "path": None}], "holds neither the bytes of a picture nor the path of one"),
        ("../secret.png", "names '../secret.png', which is not below the file's own folder"),
        ("/etc/passwd", "names '/etc/passwd', which is not below the file's own folder"),
        ("absent.png", r"names 'absent\.png', which cannot be read beside the file \(No such file or directory\)"),
        ("text.png", r"names 'text\.png', which is not a picture that can be read \(PNG, JPEG, WebP, GIF or BMP\)"),
        ({"bytes": b"no picture"}, r"is not a picture that can be read \(PNG, JPEG, WebP, GIF or BMP\)"),
    ],
)
def test_a_picture_that_is_none_names_the_file_the_row_and_the_column(
    tmp_path: Path, value: object, fault: str
) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=rf"^sums\.jsonl, row 4, field `its\.column` {fault}: correct the file\.$"):
        _row(value, tmp_path).images("it")


@pytest.mark.parametrize("name", ["pipe.png", "device.png", "folder", "n\0ul.png", "p" * 5000])
def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"^sums\.jsonl, row 4, field `its\.column` names '.*: correct") as refusal:
        _row(name, tmp_path).images("it")
    assert len(str(refusal.value)) < 500
    assert str(refusal.value).isprintable()


def test_a_picture_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(LARGEST_PICTURE + 1)
    with pytest.raises(ValueError, match=r"names 'large\.png', which cannot be read beside the file .* is larger"):
        _row("large.png", tmp_path).images("it")
    with pytest.raises(ValueError, match="has more bytes than"):
        _row({"bytes": bytes(LARGEST_PICTURE + 1)}).images("it")
    with pytest.raises(UserError, match=r"holds 5,000 pictures, which is more than 100"):  # before any is unpacked
        _row([{"bytes": b"no picture"}] * 5000).images("it")


def test_a_link_may_lead_to_a_picture_within_the_folder_and_not_out_of_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "private.png")
    (data / "link.png").symlink_to(tmp_path / "private.png")
    (data / "pictures").symlink_to(tmp_path)
    (data / "around.png").symlink_to("around.png")
    for name in ("link.png", "pictures/private.png"):
        with pytest.raises(
            UserError, match=f"names '{name}', which a symbolic link leads out of the file's own folder: corr"
        ):
            _row(name, data).images("it")
    with pytest.raises(UserError, match=r"names 'around\.png', which cannot be read beside the file"):
        _row("around.png", data).images("it")
    (data / "one.png").write_bytes((tmp_path / "private.png").read_bytes())
    (data / "same.png").symlink_to("one.png")
    (tmp_path / "linked").symlink_to("data")
    assert _row("same.png", tmp_path / "linked").images("it") == ((data / "one.png").read_bytes(),)
