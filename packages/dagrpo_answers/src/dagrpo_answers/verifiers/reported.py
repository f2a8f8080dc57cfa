"""reported: the verdict of the program or environment; no text is read."""

from dagrpo_answers.verifier import Verifier

VERIFIER = Verifier(
    name="reported",
    extract=lambda text, extractor: None,
    equal=lambda answer, ground_truth: False,
    formatted=lambda text: True,
    check=lambda ground_truth: None,  # the key by which the program knows the problem
    by_report=True,
)
