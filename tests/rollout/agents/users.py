"""A simulated user for tests."""

from collections.abc import Sequence

from dagrpo.records import Example
from dagrpo.rollout.interactions import Interaction


def _reply(example: Example, answers: Sequence[str]) -> str | None:
    return "again" if len(answers) < 3 else None


STUBBORN = Interaction(reply=_reply)
