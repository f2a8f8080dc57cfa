"""Pictures that are made up, and a tokenizer and an image processor that take them, without any model."""

import io

from PIL import Image

from dagrpo.core.types import PictureTokens
from dagrpo.models.pictures import PictureProcessor
from dagrpo.models.tokenizer import PICTURE, PICTURE_END, PICTURE_START, VIDEO, character_tokenizer

TOKENIZER = character_tokenizer(256, pictures=True)
TOKENS = PictureTokens(
    **{
        name: TOKENIZER.convert_tokens_to_ids(token)
        for name, token in (("image", PICTURE), ("video", VIDEO), ("start", PICTURE_START), ("end", PICTURE_END))
    }
)
# A token is 20 x 20 pixels, and a picture has 4 to 16.
PROCESSOR = PictureProcessor(TOKENS, {"patch_size": 10, "merge_size": 2, "min_pixels": 1600, "max_pixels": 6400})


def picture(width: int = 40, height: int = 40, colour: str = "white") -> bytes:
    """A PNG of one colour. Of 40 x 40 pixels PROCESSOR makes 4 tokens."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()
