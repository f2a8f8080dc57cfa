"""Penalties for long turns, and for using up turns or tokens."""

from typing import Annotated, Protocol

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import MOST_TOKENS
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.rewards.components import Component, Weighted


class Turns(Protocol):
    """Section rollout, which a reward knows nothing else of."""

    @property
    def max_new_tokens(self) -> int: ...


# DAPO's soft overlong punishment (arXiv:2503.14476, equation 13).
class Overlong(Weighted):
    """0 to -1 over the last tokens of a turn before rollout.max_new_tokens (DAPO)."""

    buffer: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = Field(
        4, description="Tokens before rollout.max_new_tokens over which the penalty grows from 0 to 1."
    )

    def check(self, rollout: Turns) -> None:
        """Raise UserError if the penalty begins with the first token."""
        if self.buffer >= rollout.max_new_tokens:
            raise UserError(
                f"reward.components.overlong.buffer is {self.buffer}, so every length has a penalty: lower it below "
                f"rollout.max_new_tokens ({rollout.max_new_tokens})"
            )


def overlong(graded: GradedTrajectory, config: Overlong) -> float:
    """Return 0 up to max_new_tokens - buffer tokens, -1 from the maximum on, linear in between, for the longest turn.

    max_new_tokens limits a turn, and a turn cut off there ends the attempt, so that each turn is measured by itself. Gamed
    by spreading the same words over more turns: turn_limit, or a small rollout.agent.max_turns, bounds that.
    """
    allowed = graded.trajectory.max_new_tokens - config.buffer
    return max(-1.0, min(0.0, (allowed - graded.trajectory.longest_turn) / config.buffer))


OVERLONG = Component(config=Overlong, function=overlong, limits=lambda config: (-1.0, 0.0))


class TurnLimit(Weighted):
    """-1 if rollout.agent.max_turns or max_tokens ended the attempt, else 0."""


def turn_limit(graded: GradedTrajectory, config: TurnLimit) -> float:
    """Return -1 or 0. Gamed by giving up early: any answer in the first turn escapes it, so pay wrong answers no more than this."""
    return -float(graded.trajectory.stop_reason in ("max_turns", "max_tokens"))


TURN_LIMIT = Component(config=TurnLimit, function=turn_limit, limits=lambda config: (-1.0, 0.0))
