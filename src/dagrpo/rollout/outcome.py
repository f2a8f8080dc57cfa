"""Build the Trajectory of a finished session."""

from collections.abc import Mapping, Sequence

from dagrpo.chat.renderers import ChatFormat
from dagrpo.core.types import StopReason, ToolCall
from dagrpo.rollout.session import Session, Turn
from dagrpo.rollout.trajectory import Trajectory


def trajectory_of(
    session: Session,
    sample_index: int,
    *,
    stop_reason: StopReason,
    calls: Sequence[ToolCall] = (),
    reported: Mapping[str, float] | None = None,
    fault: str = "",
) -> Trajectory:
    """Return the trajectory of a finished session. Raises the engine's error if the agent has hidden it."""
    if session.failure is not None:
        raise session.failure
    turns = session.turns
    last = turns[-1] if turns else None
    return Trajectory(
        problem=session.problem,
        sample_index=sample_index,
        sampling_seed=session.seed,
        samples=session.samples(),
        text=_graded(session.chat, last),
        finish_reason=last.completion.finish_reason if last else "stop",
        turns=len(turns),
        messages=last.messages[len(session.problem.example.prompt) :] if last else (),
        calls=tuple(calls),
        stop_reason=stop_reason,
        fault=fault,
        reported=reported or {},
        dropped_calls=sum(turn.answer.dropped_calls for turn in turns),
        cached_tokens=sum(turn.completion.cached_tokens for turn in turns),
        prompt_tokens=sum(len(turn.prompt) for turn in turns),
    )


def _graded(chat: ChatFormat, last: Turn | None) -> str:
    """Return the last turn as written, but without its calls, if any: an argument is no answer."""
    if last is None:
        return ""
    return last.answer.content if last.answer.calls else chat.text(last.completion.token_ids)
