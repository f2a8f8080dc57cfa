"""Pictures: kept when they have the form, else made upright, opaque, RGB and PNG, the same bytes every time."""

import io
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from dagrpo.core.errors import UserError
from dagrpo.data.images import rgb_file

ORIENTATION = 0x0112


def _file(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _open(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as picture:
        picture.load()
        return picture


def _chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


PNG_HEAD, PNG_END = 33, 12  # bytes: signature and IHDR, IEND
A_PNG, A_JPEG = (_file(Image.new("RGB", (4, 4)), kind) for kind in ("PNG", "JPEG"))
A_GIF = b"GIF89a\4\0\4\0\0\0\0"  # of 4 x 4 pixels, without a palette
TEXT = _chunk(b"tEXt", b"key\0text")
GRADIENT = Image.linear_gradient("L")


def _png(width: int, height: int, depth: int = 8, colour: int = 2, pixels: bytes = A_PNG[PNG_HEAD:]) -> bytes:
    return A_PNG[:8] + _chunk(b"IHDR", struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)) + pixels


def _of_16_bits(colour: int, channels: int) -> bytes:
    """Two rows, each after the kind of its filter."""
    pixels = zlib.compress((b"\0" + bytes(2 * 2 * channels)) * 2)
    return _png(2, 2, 16, colour, _chunk(b"IDAT", pixels) + _chunk(b"IEND", b""))


def _half(kind: str) -> bytes:
    content = _file(GRADIENT.convert("RGB"), kind)
    return content[: len(content) // 2]


def _painted_over() -> bytes:
    content = _file(Image.new("RGB", (64, 64)), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * 1000 + content[-2:]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_has_the_form_is_kept_byte_for_byte(kind: str) -> None:
    content = _file(Image.new("RGB", (3, 2), "red"), kind)
    assert rgb_file(content) == content


def test_what_is_see_through_becomes_white_and_lines_stay_black() -> None:
    figure = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    figure.putpixel((1, 0), (0, 0, 0, 255))
    figure.putpixel((2, 0), (0, 0, 0, 51))  # 51 / 255 = 0.2 of black: 255 * 0.8 = 204
    picture = _open(rgb_file(_file(figure, "PNG")))
    assert (picture.format, picture.mode) == ("PNG", "RGB")
    assert [picture.getpixel((x, 0)) for x in range(3)] == [(255, 255, 255), (0, 0, 0), (204, 204, 204)]
    figure = Image.new("P", (2, 1), 0)  # a palette with a see-through colour
    figure.putpalette([0, 0, 0, 255, 0, 0])
    figure.putpixel((1, 0), 1)
    picture = _open(rgb_file(_file(figure, "PNG", transparency=0)))
    assert [picture.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (255, 0, 0)]


def test_a_turned_picture_is_made_upright_and_carries_no_more_exif() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # to be turned a quarter clockwise
    picture = _open(rgb_file(_file(Image.new("RGB", (3, 2), "red"), "PNG", exif=exif)))
    assert picture.size == (2, 3)
    assert not picture.getexif()


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("CMYK", "JPEG"), ("RGB", "BMP")]
)
def test_other_modes_and_formats_become_an_rgb_png(mode: str, kind: str) -> None:
    content = _file(Image.new(mode, (2, 2)), kind)
    assert (_open(rgb_file(content)).format, _open(rgb_file(content)).mode) == ("PNG", "RGB")
    assert rgb_file(content) == rgb_file(content)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_a_moving_picture_the_first_one_is_taken(kind: str) -> None:
    first, *others = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
    moving = _file(first, kind, save_all=True, append_images=others, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(moving)) as file:
        assert getattr(file, "n_frames", 1) == 3
    still = _open(rgb_file(moving))
    assert (still.format, still.getpixel((0, 0)), getattr(still, "n_frames", 1)) == ("PNG", (255, 0, 0), 1)


UNREADABLE = "is not a picture that can be read"
MANY_PARTS = "a file of far too many parts"
REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "long": ("is a picture of 1,005 x 5 pixels, more than 200", lambda: _file(Image.new("RGB", (1005, 5)), "PNG")),
    "high": ("is a picture of 1 x 201 pixels, more than 200", lambda: _file(Image.new("RGB", (1, 201)), "PNG")),
    **{f"{width} x {height}": (UNREADABLE, partial(_png, width, height)) for width, height in ((0, 4), (4, 0), (0, 0))},
    **{
        mode: (f"is a picture of mode {mode};16B, not of 8 bits", partial(_of_16_bits, colour, channels))
        for colour, channels, mode in ((0, 1, "I"), (2, 3, "RGB"), (4, 2, "LA"), (6, 4, "RGBA"))
    },
    **{
        kind: (UNREADABLE, partial(_file, Image.new("RGB", (2, 2), "red"), kind))
        for kind in ("TIFF", "ICO", "PPM", "PDF", "EPS", "TGA", "JPEG2000")
    },
    **{f"half a {kind}": (UNREADABLE, partial(_half, kind)) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP")},
    "small file of a huge picture": (
        "is a picture of 49,000,000 pixels, more than 40,000,000",
        lambda: _file(Image.new("1", (7000, 7000)), "PNG"),
    ),
    "claims of billions of pixels": ("is a picture of more than 40,000,000 pixels", lambda: _png(60_000, 60_000)),
    "text that unpacks to gigabytes": (
        UNREADABLE,
        lambda: A_PNG[:PNG_HEAD] + _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80 << 20))) + A_PNG[PNG_HEAD:],
    ),
    "JPEG painted over a thousand times": ("a JPEG of hundreds of scans", _painted_over),
    "PNG texts": (MANY_PARTS, lambda: A_PNG[:PNG_HEAD] + TEXT * 500_000 + A_PNG[PNG_HEAD:]),
    "PNG texts at the end": (MANY_PARTS, lambda: A_PNG[:-PNG_END] + TEXT * 500_000 + A_PNG[-PNG_END:]),
    "PNG chunks": (MANY_PARTS, lambda: A_PNG[:PNG_HEAD] + _chunk(b"noNe", b"key\0text") * 500_000 + A_PNG[PNG_HEAD:]),
    "GIF comments": (MANY_PARTS, lambda: A_GIF + b"!\xfe\1a\0" * 1_000_000),
    "GIF comment": (MANY_PARTS, lambda: A_GIF + b"!\xfe" + b"\1a" * 1_000_000 + b"\0"),
    "JPEG comments": (MANY_PARTS, lambda: A_JPEG[:2] + b"\xff\xfe\0\3a" * 1_000_000 + A_JPEG[2:]),
    "JPEG notes": (MANY_PARTS, lambda: A_JPEG[:2] + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527)) * 1000 + A_JPEG[2:]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_or_would_take_gigabytes_or_hours_is_refused(what: str) -> None:
    fault, content = REFUSED[what]
    with pytest.raises(UserError, match=fault):
        rgb_file(content())


def test_postscript_reaches_no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran, program = tmp_path / "ran", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is to be looked for again
    with pytest.raises(ValueError, match=UNREADABLE):
        rgb_file(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n")
    assert not ran.exists()


def test_a_picture_with_hundreds_of_short_texts_is_kept() -> None:
    texts = A_PNG[:PNG_HEAD] + TEXT * 300 + A_PNG[PNG_HEAD:]
    assert rgb_file(texts) == texts


@pytest.mark.parametrize(
    "content",
    [
        A_PNG[:PNG_HEAD] + _chunk(b"tEXt", b"Comment\0" + bytes(b"x" * 30_000_000)) + A_PNG[PNG_HEAD:],
        A_PNG + bytes(1 << 20),
        _file(Image.new("RGB", (4, 4), "red"), "JPEG", icc_profile=bytes(255 * 65_519)),
    ],
    ids=["30 MB of text", "something behind the end", "a profile of 16 MB"],
)
def test_what_a_file_holds_beside_its_pixels_is_left_out_where_it_is_large(content: bytes) -> None:
    made = rgb_file(content)
    assert len(made) < 1000
    assert _open(made).tobytes() == _open(content).tobytes()
    assert rgb_file(made) == made


SMALL = GRADIENT.resize((16, 16))
FILES = [_file(SMALL.convert("RGBA"), "PNG"), *(_file(SMALL.convert("RGB"), k) for k in ("JPEG", "WEBP", "GIF", "BMP"))]


@given(st.sampled_from(FILES), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_damage_in_any_format_is_a_picture_or_a_sentence(content: bytes, position: int, damage: bytes) -> None:
    with suppress(ValueError):
        assert _open(rgb_file(content[:position] + damage + content[position + len(damage) :])).mode == "RGB"
