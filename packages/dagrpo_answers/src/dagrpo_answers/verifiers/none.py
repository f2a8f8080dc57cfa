"""none: a task without right answers, for rewards that models give."""

from dagrpo_answers.verifier import Extractor, Verifier


def extract(text: str, extractor: Extractor) -> str | None:
    """Return None: no text is an answer."""
    return None


VERIFIER = Verifier(
    name="none",
    extract=extract,
    equal=lambda answer, ground_truth: False,
    formatted=lambda text: True,
    check=lambda ground_truth: None,
    judges=False,
)
