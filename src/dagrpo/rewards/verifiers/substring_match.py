"""substring_match: one of the accepted texts stands in a short answer as whole words, in `<answer>...</answer>`."""

from dagrpo.rewards.text_match import accepted_texts, check, extract, formatted, normalise
from dagrpo.rewards.verifier import Verifier


def equal(answer: str, ground_truth: str) -> bool:
    """Whether one of the accepted texts stands in the answer, as whole words."""
    normalised = normalise(answer)
    return any(_stands_in(normalised, accepted) for accepted in accepted_texts(ground_truth))


def _stands_in(text: str, part: str) -> bool:
    start = text.find(part)
    while start >= 0:
        end = start + len(part)
        if not (_joined(text[start - 1 : start], part[0]) or _joined(part[-1], text[end : end + 1])):
            return True
        start = text.find(part, start + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbours are inside one word or number; scripts without spaces have no such inside."""
    return _of_a_word(left) and _of_a_word(right)


def _of_a_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in ("-", "."))


VERIFIER = Verifier(name="substring_match", extract=extract, equal=equal, formatted=formatted, check=check)
