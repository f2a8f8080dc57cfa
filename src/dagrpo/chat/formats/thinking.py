"""Separate a completion's thinking from its answer.

Thinking stands at the beginning of a completion: after <think>, or at once where the prompt ends in it. It extends to the first
</think>, or to the end if that is missing. A <think> anywhere else is ordinary text, so one within a call's arguments
breaks no call. Text within thinking that looks like a call is ignored, as in SGLang's server.
"""

import re
from dataclasses import dataclass

OPENING, CLOSING = "<think>", "</think>"
_THOUGHT = re.compile(r"<think>(?!\s*</think>)\s*\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Thinking and answer of a completion."""

    thinking: str
    start: int  # of the answer, a position in the text
    is_open: bool  # cut off within thinking


def split(text: str, *, opened: bool) -> Split:
    """Return the thinking at a text's beginning and the rest; `opened`: the prompt ends in <think>."""
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
    """Return True if a prompt ends in <think>."""
    return text.rstrip().endswith(OPENING)


def has_thought(text: str) -> bool:
    """Return True if a prompt holds thinking that is not empty."""
    return _THOUGHT.search(text) is not None


def is_marked(text: str) -> bool:
    """Return True if a completion holds a marker of thinking anywhere: templates look for it everywhere."""
    return OPENING in text or CLOSING in text
