r"""MATH: the answer in the last `\boxed{...}`, by the data set's own normalisation (arXiv:2103.03874)."""

from dagrpo.rewards.boxes import extract, formatted
from dagrpo.rewards.hendrycks import normalise, normalise_truth
from dagrpo.rewards.latex import check, compare
from dagrpo.rewards.verifier import Verifier


def equal(answer: str, ground_truth: str) -> bool | None:
    """Equal normalised texts are equal, plain numbers are compared exactly, and math-verify has to tell of the rest."""
    return compare(answer, ground_truth, normalise, normalise_truth)


VERIFIER = Verifier(name="math", extract=extract, equal=equal, formatted=formatted, check=check)
