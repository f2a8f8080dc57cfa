"""Split messages at `<image>` into parts for vision-language chat templates.

Also remove the pictures.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagrpo.chat.renderers import Message
from dagrpo.core.image_tokens import IMAGE
from dagrpo.core.types import Row

_PIECES = re.compile(f"({IMAGE})")


def with_pictures(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each content that shows pictures as parts, text and pictures in turn.

    For the messages of a row alone: `<image>` in later messages is text, and shows no picture.
    """
    return [_in_parts(message) for message in messages]


def without_pictures(row: Row) -> Row:
    """Return the row as text alone, its prompt without the pictures."""
    hidden = tuple({**message, "content": message["content"].replace(IMAGE, "")} for message in row.prompt)
    return replace(row, prompt=hidden, images=())


def _in_parts(message: Message) -> Message:
    content = message["content"]
    if not isinstance(content, str) or IMAGE not in content:
        return message
    return {**message, "content": [_part(piece) for piece in _PIECES.split(content) if piece]}


def _part(piece: str) -> Mapping[str, Any]:
    return {"type": "image"} if piece == IMAGE else {"type": "text", "text": piece}
