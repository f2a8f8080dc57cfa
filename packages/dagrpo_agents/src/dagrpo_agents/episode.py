"""Attempts in an environment, which also offers the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dagrpo.core.errors import UserError
from dagrpo.rollout.agent_loop import User, attempt
from dagrpo.rollout.tool_runtime.toolbox import Toolbox
from dagrpo.tools import CallContext, ToolFunction

if TYPE_CHECKING:
    from dagrpo.chat.renderers import ToolSchema
    from dagrpo.core.trajectory import Trajectory
    from dagrpo.rollout.agents import Limits
    from dagrpo.rollout.session import Session

ENVIRONMENT_REWARD = "environment"  # the name under which an environment's own reward is reported


class Episode(User, Protocol):
    """Episode of an environment, for one attempt: a user that offers functions."""

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
        _require_tools_shown(session, own)
    return await attempt(
        session,
        sample_index,
        user=episode,
        toolbox=Toolbox({function.name: episode for function in episode.functions}, limits),
        tools=(*session.prompt.tools, *own),
        limits=limits,
    )


def _require_tools_shown(session: Session, own: Sequence[ToolSchema]) -> None:
    """Raise UserError if the chat template leaves out the environment's tools.

    Stage prepare checks the tools of a task (data/filters/prompt_length.py); those of an environment are known here first.
    """
    prompt, chat = session.prompt, session.chat
    if not own or prompt.row.demonstration:
        return
    _, without_tools = chat.prompt(prompt.row.prompt, prompt.tools)
    _, with_tools = chat.prompt(prompt.row.prompt, (*prompt.tools, *own))
    if with_tools == without_tools:
        raise UserError(
            f"The environment offers the tool {own[0]['function']['name']}, but the model's chat template does not describe tools, "
            "so that the policy would never learn of it: choose a model, or a model.chat_template, that describes tools, or set "
            "rollout.chat to {name: renderers} with the model's family."
        )
