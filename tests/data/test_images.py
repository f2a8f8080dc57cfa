"""Pictures: kept when they have the form, else made upright, opaque, RGB and PNG, the same bytes every time."""

import io
import struct
import zlib
from contextlib import suppress
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


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_that_has_the_form_is_kept_byte_for_byte(kind: str) -> None:
    content = _file(Image.new("RGB", (3, 2), "red"), kind)
    assert rgb_file(content) == content


@pytest.mark.parametrize("size", [(1005, 5), (1, 201)])
def test_a_picture_that_is_all_length_is_refused(size: tuple[int, int]) -> None:
    told = f"is a picture of {size[0]:,} x {size[1]:,} pixels, more than 200 times as long as wide"
    with pytest.raises(UserError, match=told):
        rgb_file(_file(Image.new("RGB", size), "PNG"))


def test_what_is_see_through_becomes_white_and_lines_stay_black() -> None:
    figure = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    figure.putpixel((1, 0), (0, 0, 0, 255))
    figure.putpixel((2, 0), (0, 0, 0, 51))  # 51 / 255 = 0.2 of black: 255 * 0.8 = 204
    picture = _open(rgb_file(_file(figure, "PNG")))
    assert (picture.format, picture.mode) == ("PNG", "RGB")
    assert [picture.getpixel((x, 0)) for x in range(3)] == [(255, 255, 255), (0, 0, 0), (204, 204, 204)]


def test_a_palette_with_a_see_through_colour_becomes_white_there() -> None:
    figure = Image.new("P", (2, 1), 0)
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
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
    moving = _file(
        frames[0], kind, save_all=True, append_images=frames[1:], **{"WEBP": {"lossless": True}}.get(kind, {})
    )
    with Image.open(io.BytesIO(moving)) as file:
        assert getattr(file, "n_frames", 1) == 3
    still = _open(rgb_file(moving))
    assert (still.format, still.getpixel((0, 0)), getattr(still, "n_frames", 1)) == ("PNG", (255, 0, 0), 1)


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0, 0)])
def test_a_picture_of_no_pixels_is_refused(size: tuple[int, int]) -> None:
    content = A_PNG[:8] + _chunk(b"IHDR", struct.pack(">2I5B", *size, 8, 2, 0, 0, 0)) + A_PNG[PNG_HEAD:]
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        rgb_file(content)


@pytest.mark.parametrize(("colour", "channels", "mode"), [(0, 1, "I"), (2, 3, "RGB"), (4, 2, "LA"), (6, 4, "RGBA")])
def test_more_than_8_bits_per_channel_is_refused(colour: int, channels: int, mode: str) -> None:
    head = struct.pack(">2I5B", 2, 2, 16, colour, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes(2 * 2 * channels)) * 2)  # two rows, each after the kind of its filter
    content = A_PNG[:8] + _chunk(b"IHDR", head) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
    assert _open(content).size == (2, 2), "a whole one"
    with pytest.raises(ValueError, match=f"is a picture of mode {mode};16B, not of 8 bits per channel"):
        rgb_file(content)


PICTURE = _file(Image.linear_gradient("L").resize((16, 16)).convert("RGBA"), "PNG")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n"


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "PDF", "EPS", "TGA", "JPEG2000"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        rgb_file(_file(Image.new("RGB", (2, 2), "red"), kind))


def test_postscript_reaches_no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran, program = tmp_path / "ran", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is to be looked for again
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        rgb_file(POSTSCRIPT)
    assert not ran.exists()


def test_a_small_file_of_a_huge_picture_is_refused_before_it_is_unpacked() -> None:
    bomb = _file(Image.new("1", (7000, 7000)), "PNG")
    assert len(bomb) < 10_000
    with pytest.raises(ValueError, match="is a picture of 49,000,000 pixels, more than 40,000,000"):
        rgb_file(bomb)


def test_a_file_that_claims_billions_of_pixels_is_refused_by_its_size() -> None:
    whole = _file(Image.new("1", (8, 8)), "PNG")
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + whole[24:29]
    claims = whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]
    with pytest.raises(ValueError, match="is a picture of more than 40,000,000 pixels"):
        rgb_file(claims)


def test_a_text_in_a_picture_that_unpacks_to_gigabytes_is_refused() -> None:
    text = zlib.compress(bytes(80 << 20))
    chunk = b"zTXt" + b"k\0\0" + text
    packed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    plain = _file(Image.new("RGB", (2, 2)), "PNG")
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        rgb_file(plain[:33] + packed + plain[33:])


def test_a_jpeg_that_paints_over_itself_a_thousand_times_is_refused() -> None:
    content = _file(Image.new("RGB", (64, 64)), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    with pytest.raises(ValueError, match="a JPEG of hundreds of scans"):
        rgb_file(content[:last] + content[last:-2] * 1000 + content[-2:])


def _chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _chunks(name: bytes, number: int) -> bytes:
    content = b"key\0text"
    return (struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))) * number


PNG_HEAD, PNG_END, GIF_HEAD = 33, 12, 13  # bytes: signature and IHDR, IEND, all that comes before a palette
A_PNG, A_JPEG = (_file(Image.new("RGB", (4, 4)), kind) for kind in ("PNG", "JPEG"))
A_GIF = b"GIF89a\4\0\4\0\0\0\0"  # of 4 x 4 pixels, without a palette


@pytest.mark.parametrize(
    "content",
    [
        A_PNG[:PNG_HEAD] + _chunks(b"tEXt", 500_000) + A_PNG[PNG_HEAD:],
        A_PNG[:-PNG_END] + _chunks(b"tEXt", 500_000) + A_PNG[-PNG_END:],
        A_PNG[:PNG_HEAD] + _chunks(b"noNe", 500_000) + A_PNG[PNG_HEAD:],
        A_GIF + b"!\xfe\1a\0" * 1_000_000,
        A_GIF + b"!\xfe" + b"\1a" * 1_000_000 + b"\0",
        A_JPEG[:2] + b"\xff\xfe\0\3a" * 1_000_000 + A_JPEG[2:],
        A_JPEG[:2] + (b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527)) * 1000 + A_JPEG[2:],
    ],
    ids=[
        "PNG texts",
        "PNG texts at the end",
        "PNG chunks",
        "GIF comments",
        "GIF comment",
        "JPEG comments",
        "JPEG notes",
    ],
)
def test_a_file_of_a_million_comments_is_refused_and_not_read_one_by_one(content: bytes) -> None:
    assert len(content) < 1 << 26
    with pytest.raises(ValueError, match="a file of far too many parts"):
        rgb_file(content)


def test_a_picture_with_hundreds_of_short_texts_is_kept() -> None:
    texts = A_PNG[:PNG_HEAD] + _chunks(b"tEXt", 300) + A_PNG[PNG_HEAD:]
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


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_half_a_picture_is_refused(kind: str) -> None:
    content = _file(Image.linear_gradient("L").convert("RGB"), kind)
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        rgb_file(content[: len(content) // 2])


FILES = [_file(Image.linear_gradient("L").resize((16, 16)).convert("RGB"), k) for k in ("JPEG", "WEBP", "GIF", "BMP")]


@given(st.sampled_from([PICTURE, *FILES]), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_damage_in_any_format_is_a_picture_or_a_sentence(content: bytes, position: int, damage: bytes) -> None:
    with suppress(ValueError):
        assert _open(rgb_file(content[:position] + damage + content[position + len(damage) :])).mode == "RGB"
