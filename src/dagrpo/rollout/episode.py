"""An attempt in somebody else's environment: it says something first, answers calls and words, and knows what it was worth.

Not here: what an environment is (agents/environment.py, agents/openenv.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dagrpo.rollout.dialogue import Partner, attempt
from dagrpo.rollout.toolbox.toolbox import Toolbox
from dagrpo.rollout.tools import CallContext, ToolFunction

if TYPE_CHECKING:
    from dagrpo.rollout.agents import Limits
    from dagrpo.rollout.session import Session
    from dagrpo.rollout.trajectory import Trajectory


class Episode(Partner, Protocol):
    """One episode of an environment, of one attempt alone: a partner that offers functions."""

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """What the policy may call."""
        ...

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """A call's result. ToolFailure."""
        ...

    async def forget(self, trajectory: str) -> None:
        """Calls are over."""
        ...


async def attempt_in(episode: Episode, limits: Limits, sample_index: int, session: Session) -> Trajectory:
    """One attempt, ended by an answer, the environment, a limit, or a failure that the policy has no part in."""
    own = tuple(function.schema for function in episode.functions)
    return await attempt(
        session,
        sample_index,
        partner=episode,
        toolbox=Toolbox({function.name: episode for function in episode.functions}, limits),
        tools=(*session.problem.tools, *own),
        limits=limits,
    )
