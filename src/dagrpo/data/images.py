"""Pictures in one form: PNG or JPEG, RGB, upright, opaque.

Geometry figures are often black lines on a transparent ground, which a plain conversion to RGB turns black: here
the ground is white. Only raster formats are read that Pillow decodes itself: of all it knows, PostScript would be run by
another program.
"""

import io

from PIL import Image, ImageFile, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_ELONGATED, MOST_PIXELS

_ORIENTATION = 0x0112  # the EXIF tag; 1 is upright
_READ = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_UNCHANGED = ("PNG", "JPEG")
MOST_BESIDE = 1 << 16  # bytes of a file that is kept, beyond those that its pixels take unpacked
MOST_READS_TO_OPEN = (
    1200  # of a part of a file before its pixels: four per segment of a JPEG, whose profile may have 255
)
MOST_READS = 400_000  # four per chunk of a PNG, of which 64 MiB in the usual 8 KiB have 8,000
_SCAN = b"\xff\xda"  # begins each pass over a JPEG's pixels, and never stands within one
MOST_SCANS = 100  # a progressive JPEG has about ten
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr")


def rgb_file(content: bytes) -> bytes:
    """Return a picture's file: unchanged if it has the form, else the same picture as PNG (same input, same bytes).

    A file much larger than its unpacked pixels holds something else besides, such as texts: that is left out. Of a moving picture, the
    first one is used. Raises UserError, with half a sentence for the row's message, if the content is no PNG, JPEG, WebP, GIF or BMP of 8
    bits per channel, at most MOST_PIXELS and MOST_ELONGATED.
    """
    try:
        file = _CountingFile(content)
        with Image.open(file, formats=_READ) as picture:
            _require_readable(picture, content)
            file.reads_left = MOST_READS
            picture.load()
            unpacked = len(picture.getbands()) * picture.width * picture.height
            return content if _has_the_form(picture) and len(content) <= unpacked + MOST_BESIDE else _as_png(picture)
    except UserError:
        raise
    except Image.DecompressionBombError:  # far beyond MOST_PIXELS: Pillow does not even open it
        raise UserError(f"is a picture of more than {MOST_PIXELS:,} pixels") from None
    except Exception:  # noqa: BLE001 - untrusted content: Pillow's decoders raise errors of a dozen kinds on it
        raise UserError("is not a picture that can be read (PNG, JPEG, WebP, GIF or BMP)") from None


class _CountingFile(io.BytesIO):
    """File with a limited number of reads: Pillow reads each comment separately, and a small file may have a million."""

    reads_left = MOST_READS_TO_OPEN

    def read(self, size: int | None = -1) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise UserError("is not a picture that can be read (a file of far too many parts)")
        return super().read(size)


def _require_readable(picture: ImageFile.ImageFile, content: bytes) -> None:
    """Refuse, before unpacking, a picture that would take gigabytes or hours, or lose half of its bits. Raises UserError."""
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise UserError(f"is a picture of {pixels:,} pixels, more than {MOST_PIXELS:,}")
    if max(picture.size) > MOST_ELONGATED * max(1, min(picture.size)):
        raise UserError(
            f"is a picture of {picture.width:,} x {picture.height:,} pixels, more than {MOST_ELONGATED} times as long as wide"
        )
    for tile in picture.tile:
        if picture.format == "PNG" and "16" in str(
            tile.args
        ):  # such as RGB;16B, of which Pillow would drop the lower bits
            raise UserError(f"is a picture of mode {tile.args}, not of 8 bits per channel")
    if isinstance(picture, JpegImageFile) and content.count(_SCAN) > MOST_SCANS:
        raise UserError("is not a picture that can be read (a JPEG of hundreds of scans)")


def _has_the_form(picture: Image.Image) -> bool:
    upright = picture.getexif().get(_ORIENTATION, 1) == 1
    alone = getattr(picture, "n_frames", 1) == 1  # an animated PNG says PNG, too
    return (
        picture.format in _UNCHANGED
        and picture.mode == "RGB"
        and upright
        and alone
        and "transparency" not in picture.info
    )


def _as_png(picture: Image.Image) -> bytes:
    if picture.mode not in _EIGHT_BIT:
        raise UserError(f"is a picture of mode {picture.mode}, not of 8 bits per channel")
    upright = ImageOps.exif_transpose(picture).convert("RGBA")
    ground = Image.new("RGB", upright.size, "white")
    ground.paste(upright, mask=upright.getchannel("A"))
    file = io.BytesIO()
    ground.save(file, "PNG")
    return file.getvalue()
