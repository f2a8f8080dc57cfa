"""Send pictures to an SGLang server.

Each is one placeholder in the tokens, with its file beside them. The server expands a placeholder to the number of tokens that the
picture takes. A prompt with another number of placeholders than pictures must never reach it: SGLang 0.5.23 then raises StopIteration
in a thread, and the request never ends.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from dagrpo.core.image_tokens import before_pictures, collapsed, picture_lengths
from dagrpo.core.types import PromptPictures, SamplingRequest, ScoringRequest

_DATA = "data:;base64,"
_JPEG = b"\xff\xd8"


def sent_ids(token_ids: tuple[int, ...], pictures: PromptPictures | None) -> tuple[int, ...]:
    """Return a prompt as a server takes it. [prompt, with one placeholder per picture]"""
    if pictures is None:
        return token_ids
    _require_agreement(token_ids, pictures)
    return collapsed(token_ids, pictures.tokens) if pictures.files else token_ids


def files_of(request: SamplingRequest | ScoringRequest) -> tuple[bytes, ...]:
    """Return a prompt's pictures, in order; () without any."""
    return request.pictures.files if request.pictures else ()


def sent_pictures(files: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """Return the request-body fields for the pictures of prompts, [prompts][pictures]; {} without any."""
    if not any(files):
        return {}
    written = {file: _written(file) for each in files for file in each}
    return {"image_data": [[written[file] for file in each] for each in files]}


def pictures_to_be_checked(files: Sequence[Sequence[bytes]]) -> dict[str, Any]:
    """Return `sent_pictures`, and the field that asks for each prompt's tokens with its pictures' placeholders expanded."""
    pictures = sent_pictures(files)
    return pictures | {"return_prompt_token_ids": True} if pictures else {}


def written_length(token_ids: Sequence[int], request: SamplingRequest) -> int:
    """Return the length of a completion up to its first token that would begin a picture: no picture follows it.

    The mark of a beginning at the end of a scored sequence would be past the end for SGLang 0.5.23, which refuses the request.
    """
    return before_pictures(token_ids, request.pictures.tokens) if request.pictures else len(token_ids)


def _written(file: bytes) -> str:
    """Return a picture's file as a data URI: SGLang takes the base64 of a JPEG, which begins with a slash, for a path of its machine.

    A JPEG gets one byte more behind its end, which Pillow does not read: without it, SGLang on a GPU would decode the picture by
    another library than training does, to other pixels.
    """
    return _DATA + b64encode(file + b"\0" if file.startswith(_JPEG) else file).decode()


def _require_agreement(token_ids: Sequence[int], pictures: PromptPictures) -> None:
    count = len(picture_lengths(token_ids, pictures.tokens))
    assert count == len(pictures.files), f"{count} placeholders for {len(pictures.files)} pictures"
    assert pictures.tokens.video not in token_ids, "there are no videos"
