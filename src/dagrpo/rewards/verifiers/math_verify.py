r"""math_verify: the answer in the last `\boxed{...}`, compared by math-verify wherever texts and numbers cannot tell."""

from dagrpo.rewards.boxes import extract, formatted
from dagrpo.rewards.latex import check, compare
from dagrpo.rewards.verifier import Verifier


def equal(answer: str, ground_truth: str) -> bool | None:
    """The same text is equal, plain numbers are compared exactly, and math-verify has to tell of the rest."""
    return compare(answer, ground_truth, str.strip, str.strip)


VERIFIER = Verifier(name="math_verify", extract=extract, equal=equal, formatted=formatted, check=check)
