"""ifeval: a text that follows all instructions of its prompt."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dagrpo_answers.errors import UserError
from dagrpo_answers.instructions.checks import MOST_INSTRUCTIONS, follows, loosened, mistake
from dagrpo_answers.verifier import Extractor, Verifier


def extract(text: str, extractor: Extractor) -> str | None:
    """Return the whole text; None if it is blank."""
    return text if text.strip() else None


def equal(answer: str, ground_truth: str) -> bool:
    """Return True if the text follows all instructions, strictly."""
    return all(followed for _, followed in parts(answer, ground_truth, "strict"))


def parts(text: str, ground_truth: str, extractor: Extractor) -> list[tuple[str, bool]]:
    """Return the instructions, and whether the text follows each.

    flexible: or the text without its first line, its last line or its asterisks does (the published loose accuracy).
    """
    texts = loosened(text) if extractor == "flexible" else [text]
    return [(name, any(follows(each, name, own) for each in texts)) for name, own in instructions(ground_truth)]


@lru_cache(maxsize=1 << 10)
def instructions(ground_truth: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the instructions of a ground truth with their parameters. Raises UserError if it is not JSON of that form."""
    try:
        listed = [(name, own) for name, own in json.loads(ground_truth)]
        wrong = _wrong_number(len(listed)) or next(filter(None, (mistake(name, own) for name, own in listed)), "")
    except (ValueError, TypeError, RecursionError):
        wrong = "it is no list of pairs in JSON"
    if wrong:
        raise UserError(
            f'the instructions cannot be read ({wrong}): write them as [["length_constraints:number_words", '
            '{"relation": "at least", "num_words": 300}]].'
        )
    return tuple(listed)


def _wrong_number(instructions: int) -> str:
    if instructions > MOST_INSTRUCTIONS:
        return f"it has {instructions:,} instructions, more than {MOST_INSTRUCTIONS}"
    return "" if instructions else "it is empty"


def check(ground_truth: str) -> None:
    """Raise UserError if a ground truth states no instructions."""
    instructions(ground_truth)


VERIFIER = Verifier(
    name="ifeval",
    extract=extract,
    equal=equal,
    formatted=lambda text: bool(text.strip()),
    check=check,
    reads_truths_of=(),
    parts=parts,
)
