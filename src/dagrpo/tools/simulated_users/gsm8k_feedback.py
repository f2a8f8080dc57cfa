"""gsm8k_feedback: a user who rejects wrong answers. An oracle.

It knows the ground truth. verl's Gsm8kInteraction: the last answer is parsed strictly, after `####`, and a right one ends the
dialogue.
"""

from collections.abc import Sequence

from dagrpo.core.types import Row
from dagrpo.tools.simulated_users import Interaction
from dagrpo_answers.own_text import answer_text
from dagrpo_answers.verifiers.gsm8k import equal, extract

WRONG = "Your answer is wrong. Go over your reasoning again, and give your new answer in the form `#### <answer>`."


def reply(row: Row, answers: Sequence[str]) -> str | None:
    """Return None for a right answer; otherwise a text that says it is wrong, also when it is missing."""
    answer = extract(answer_text(answers[-1]), "strict")
    return None if answer is not None and equal(answer, row.ground_truth) else WRONG


INTERACTION = Interaction(reply=reply, oracle=True)
