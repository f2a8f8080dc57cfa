"""substring_match: an accepted text stands in a short answer as whole words."""

import re

from dagrpo_answers.text_match import accepted_texts, check, extract, formatted, normalise, same
from dagrpo_answers.verifier import Verifier

_OF_A_WORD = r"!-~\u00b1\u00b7\u00c0-\u0dff\u2248\u2260\u2264\u2265"  # scripts without spaces begin beyond, with Thai
_BOUNDARY = re.compile(rf"(?<![{_OF_A_WORD}])|(?![{_OF_A_WORD}])")


def equal(answer: str, ground_truth: str) -> bool:
    """Return True if an accepted text stands in the answer as whole words."""
    normalised = normalise(answer)
    contained = [accepted for accepted in accepted_texts(ground_truth) if accepted in normalised]
    if not contained:
        return False
    marked = _marked(normalised)
    return any(_marked(accepted) in marked for accepted in contained)


def _marked(text: str) -> str:
    """Return a text with a mark wherever a word may begin or end: a search for one then finds whole words, in linear time."""
    return _BOUNDARY.sub("\0", text)


VERIFIER = Verifier(name="substring_match", extract=extract, equal=equal, formatted=formatted, check=check, same=same)
