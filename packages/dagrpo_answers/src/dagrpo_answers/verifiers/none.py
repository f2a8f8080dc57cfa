"""none: a task without right answers, for rewards that models give."""

from dagrpo_answers.verifier import Verifier

VERIFIER = Verifier(
    name="none",
    extract=lambda text, extractor: None,
    equal=lambda answer, ground_truth: False,
    formatted=lambda text: True,
    check=lambda ground_truth: None,
    judges=False,
)
