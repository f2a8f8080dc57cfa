r"""The library math-verify by its own defaults, on the whole completion.

`verify(parse("\\boxed{ground truth}"), parse(completion))`: worker.py calls it, within limits of time and memory.
"""

from dagrpo_answers.scorers import OF_MATH, Scorer


def undecided(completion: str, ground_truth: str) -> None:
    """Return None: the library decides, in a worker process."""


SCORERS = (
    Scorer(
        name="math_verify",
        source="math-verify 0.9.0 (Apache-2.0), the installed version",
        right=undecided,
        verifiers=OF_MATH,
    ),
)
