"""reported: the verdict of the program or environment; no text is read."""

from dagrpo_answers.verifier import Extractor, Verifier


def extract(text: str, extractor: Extractor) -> str | None:
    """Return None: no text is read."""
    return None


def equal(answer: str, ground_truth: str) -> bool:
    """Never asked: there is no answer."""
    return False


def formatted(text: str) -> bool:
    """No form is asked for."""
    return True


def check(ground_truth: str) -> None:
    """Any text will do: it is the key by which the program knows the problem."""


VERIFIER = Verifier(name="reported", extract=extract, equal=equal, formatted=formatted, check=check, by_report=True)
