"""Pictures in the one form that every consumer takes: PNG or JPEG, RGB, upright, nothing see-through.

Geometry figures are often black lines on a transparent ground, which a plain conversion to RGB turns black: here
the ground is white.
"""

import io

from PIL import Image, ImageOps

from dagrpo.errors import UserError

_ORIENTATION = 0x0112  # the EXIF tag; 1 is upright
_KEPT = ("PNG", "JPEG")
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr")


def rgb_file(content: bytes) -> bytes:
    """A picture's file: as it is when it already has the form, else the same picture as PNG (same input, same bytes).

    UserError, with half a sentence for the row's complaint, when the content is no picture of 8 bits per channel.
    """
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            return content if _has_the_form(picture) else _as_png(picture)
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError):  # what Pillow raises on damaged files
        raise UserError("is not a picture that can be read") from None


def _has_the_form(picture: Image.Image) -> bool:
    upright = picture.getexif().get(_ORIENTATION, 1) == 1
    return picture.format in _KEPT and picture.mode == "RGB" and upright and "transparency" not in picture.info


def _as_png(picture: Image.Image) -> bytes:
    if picture.mode not in _EIGHT_BIT:
        raise UserError(f"is a picture of mode {picture.mode}, which is not 8 bits per channel")
    upright = ImageOps.exif_transpose(picture).convert("RGBA")
    ground = Image.new("RGB", upright.size, "white")
    ground.paste(upright, mask=upright.getchannel("A"))
    file = io.BytesIO()
    ground.save(file, "PNG")
    return file.getvalue()
