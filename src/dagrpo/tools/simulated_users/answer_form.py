"""answer_form: a user who asks once for the required form.

The user does not know the ground truth.
"""

from collections.abc import Sequence

from dagrpo.core.types import Row
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.tools.simulated_users import Interaction

ASK = "I cannot find your final answer. Please give it in the form that was asked for."


def reply(row: Row, answers: Sequence[str]) -> str | None:
    """Return the question after a first answer without the form of its verifier; None after any other."""
    formatted = get_verifier(row.verifier).formatted
    return ASK if len(answers) == 1 and not formatted(answers[0]) else None


INTERACTION = Interaction(reply=reply)
