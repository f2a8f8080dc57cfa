"""Simulated users, one small file each.

A user answers the policy's turns until it has no reply. A task names its user. A user knows the row and the policy's answers, and
keeps no state: the same dialogue gives the same reply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagrpo.core.errors import require_arguments
from dagrpo.core.plugins import Plugins
from dagrpo.core.types import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Simulated user."""

    # The problem and the policy's answers so far, the newest last -> what the user says; None: the dialogue is over.
    reply: Callable[[Row, Sequence[str]], str | None]
    # It knows the ground truth, and tells: a score obtained with it says nothing about the policy.
    oracle: bool = False

    def __post_init__(self) -> None:
        """Raise UserError, with its file and line, for a function that takes other arguments."""
        require_arguments("reply", self.reply, "row", "answers")


INTERACTIONS: Plugins[Interaction] = Plugins(
    what="simulated user",
    package=__name__,
    attribute="INTERACTION",
    group="dagrpo.interactions",
    key="the task's interaction",
    kind=Interaction,
)
