"""Where thinking ends and the answer begins.

Thinking is what a completion begins with: after <think>, or at once where the prompt ends in it. It goes up to the first
</think>, or to the end where there is none. A <think> anywhere else is ordinary text, so one within a call's arguments
breaks no call. What looks like a call within thinking is none, as in SGLang's server.
"""

import re
from dataclasses import dataclass

OPENING, CLOSING = "<think>", "</think>"
_THOUGHT = re.compile(r"<think>(?!\s*</think>)\s*\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A completion's text in two."""

    thinking: str
    start: int  # of the answer, a position in the text
    is_open: bool  # cut off within thinking


def split(text: str, *, opened: bool) -> Split:
    """The thinking at a text's beginning; `opened`: the prompt ends in <think>."""
    start = 0
    if not opened:
        start = len(text) - len(text.lstrip())
        if not text.startswith(OPENING, start):
            return Split(thinking="", start=0, is_open=False)
        start += len(OPENING)
    end = text.find(CLOSING, start)
    if end < 0:
        return Split(thinking=text[start:].strip(), start=len(text), is_open=True)
    return Split(thinking=text[start:end].strip(), start=end + len(CLOSING), is_open=False)


def ends_open(text: str) -> bool:
    """Whether a prompt ends in <think>."""
    return text.rstrip().endswith(OPENING)


def has_thought(text: str) -> bool:
    """Whether a prompt holds thinking that is not empty."""
    return _THOUGHT.search(text) is not None


def is_marked(text: str) -> bool:
    """Whether a completion holds a marker of thinking, wherever: templates look for it everywhere."""
    return OPENING in text or CLOSING in text
