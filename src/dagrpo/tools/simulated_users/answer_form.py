"""answer_form: a user who asks once for the required form.

The user does not know the ground truth.
"""

from collections.abc import Sequence

from dagrpo.core.types import Row
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.tools.simulated_users import Interaction
from dagrpo_answers.judging import has_form

ASK = "I cannot find your final answer. Please give it in the form that was asked for."


def reply(row: Row, answers: Sequence[str]) -> str | None:
    """Return the question after a first answer without the form of its verifier; None after any other."""
    asks = len(answers) == 1 and not has_form(get_verifier(row.verifier), answers[0])
    return ASK if asks else None


INTERACTION = Interaction(reply=reply)
