"""Attempt in an external environment that supplies observations, tool results and reward.

The environments are in agents/environment.py and agents/openenv.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dagrpo.core.errors import UserError
from dagrpo.rollout.agent_loop import Partner, attempt
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext, ToolFunction

if TYPE_CHECKING:
    from dagrpo.chat.renderers import ToolSchema
    from dagrpo.rollout.agents import Limits
    from dagrpo.rollout.session import Session
    from dagrpo.rollout.trajectory import Trajectory


class Episode(Partner, Protocol):
    """Episode of an environment, for one attempt: a partner that offers functions."""

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """Return the functions that the policy may call."""
        ...

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return a call's result. Raises ToolFailure."""
        ...

    async def forget(self, trajectory: str) -> None:
        """End the calls of a trajectory."""
        ...


async def attempt_in(
    episode: Episode, limits: Limits, sample_index: int, session: Session, *, fresh: bool = False
) -> Trajectory:
    """Make one attempt, ended by an answer, the environment, a limit, or a failure that is not the policy's.

    Raises UserError if the chat template leaves out the environment's text or tools, except for a `fresh` model, which learns calls by
    chance.
    """
    own = tuple(function.schema for function in episode.functions)
    if not fresh:
        _require_told(session, own)
    return await attempt(
        session,
        sample_index,
        partner=episode,
        toolbox=Toolbox({function.name: episode for function in episode.functions}, limits),
        tools=(*session.problem.tools, *own),
        limits=limits,
    )


def _require_told(session: Session, own: Sequence[ToolSchema]) -> None:
    """Raise UserError if the chat template leaves out the environment's tools.

    Stage prepare checks the tools of a task (data/filters/tools_told.py); those of an environment are known here first.
    """
    problem, chat = session.problem, session.chat
    if not own or problem.example.demonstration:
        return
    _, untold = chat.prompt(problem.example.prompt, problem.tools)
    _, told = chat.prompt(problem.example.prompt, (*problem.tools, *own))
    if told == untold:
        raise UserError(
            f"The environment offers the tool {own[0]['function']['name']}, and the model's chat template leaves out what tools there "
            "are, so that the policy would never know: choose a model, or a model.chat_template, that tells of tools, or set "
            "rollout.chat to {name: renderers} with the model's family."
        )
