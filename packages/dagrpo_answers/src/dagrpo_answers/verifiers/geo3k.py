r"""Geometry3K: thoughts in `<think>...</think>`, then the answer in `\boxed{...}`.

The published reward (mathruler) is reward.components accuracy with weight 0.9 and format with 0.1.
"""

from dagrpo_answers.comparing import check, equal
from dagrpo_answers.verifier import Verifier
from dagrpo_answers.verifiers.math import extract

_THINK, _END_OF_THINK, _BOX, _END_OF_BOX = "<think>", "</think>", "\\boxed{", "}"


def formatted(text: str) -> bool:
    r"""Return True if the text is `<think>...</think>...\boxed{...}...`, by searches that never go back."""
    if not text.startswith(_THINK):
        return False
    position = len(_THINK)
    for part in (_END_OF_THINK, _BOX, _END_OF_BOX):
        place = text.find(part, position)
        if place < 0:
            return False
        position = place + len(part)
    return True


VERIFIER = Verifier(
    name="geo3k", extract=extract, equal=equal, formatted=formatted, check=check, same=equal, asks_for_thought=True
)
