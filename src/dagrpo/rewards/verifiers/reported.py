"""reported: no text is read. The program or the environment that made the attempt says what it was worth (reporting.py)."""

from dagrpo.params.base import Extractor
from dagrpo.rewards.verifier import Verifier


def extract(text: str, extractor: Extractor) -> str | None:
    """Nothing."""
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
