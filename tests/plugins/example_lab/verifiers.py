"""A verifier of our own: the answer is the last word, yes or no."""

from dagrpo.core.errors import UserError
from dagrpo_answers.verifier import Extractor, Verifier

ANSWERS = ("yes", "no")


def extract(text: str, extractor: Extractor) -> str | None:
    """The last word where it is yes or no, by every extractor."""
    _, _, last = text.rstrip(" .!").lower().rpartition(" ")
    return last if last in ANSWERS else None


def equal(answer: str, ground_truth: str) -> bool:
    """Whether it is the same word."""
    return answer == ground_truth


def formatted(text: str) -> bool:
    """Whether it ends in yes or no."""
    return extract(text, "strict") is not None


def check(ground_truth: str) -> None:
    """UserError when the ground truth is another word."""
    if ground_truth not in ANSWERS:
        raise UserError(f"{ground_truth[:40]!r} is neither yes nor no: correct the ground truth.")


yes_or_no = Verifier(name="yes_or_no", extract=extract, equal=equal, formatted=formatted, check=check)
