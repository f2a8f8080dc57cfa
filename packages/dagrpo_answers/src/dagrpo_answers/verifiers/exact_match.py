"""exact_match: a short answer equals one of the accepted texts."""

from dagrpo_answers.text_match import accepted_texts, check, extract, formatted, normalise, same
from dagrpo_answers.verifier import Verifier


def equal(answer: str, ground_truth: str) -> bool:
    """Return True if the answer is one of the accepted texts."""
    return normalise(answer) in accepted_texts(ground_truth)


VERIFIER = Verifier(name="exact_match", extract=extract, equal=equal, formatted=formatted, check=check, same=same)
