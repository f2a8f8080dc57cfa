"""Attempts by programs: a program's input, and its trajectory."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dagrpo.core.escape import brief
from dagrpo.core.trajectory import Prompt, Trajectory
from dagrpo.core.types import StopReason
from dagrpo.core.untrusted_json import read_json
from dagrpo.rewards.reporting import as_reward
from dagrpo.rollout.session import Session, trajectory_of
from dagrpo_agents.gateway.server import MODEL, Access, Gateway

MOST_REWARDS = 64
LONGEST_NAME = 80


class ProgramFailure(Exception):
    """Failure of a program to do its part. The message is a sentence that names the fault."""


def reported_rewards(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the rewards by name; `reward` is one more, of that name. Raises ProgramFailure if one of them is no number."""
    rewards = report.get("rewards") or {}
    if not isinstance(rewards, dict) or len(rewards) > MOST_REWARDS:
        raise ProgramFailure(
            f"The `rewards` that it reports are not an object of at most {MOST_REWARDS} names with their numbers."
        )
    if report.get("reward") is not None:
        rewards = {**rewards, "reward": report["reward"]}
    return {_name(name): _number(name, value) for name, value in rewards.items()}


def report_in(output: bytes) -> dict[str, float]:
    """Return the rewards in the last line of a program's output; {} if the line is something else."""
    last = output.rstrip().rpartition(b"\n")[2]
    try:
        report = read_json(last, constants=True)
    except ValueError:
        return {}
    return reported_rewards(report) if isinstance(report, dict) else {}


def _name(name: str) -> str:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ProgramFailure(
            f"It reports a reward named {brief(name)}: a name has at most {LONGEST_NAME} visible characters."
        )
    return name


def _number(name: str, value: Any) -> float:
    try:
        return as_reward(value)
    except (TypeError, ValueError):
        raise ProgramFailure(
            f"It reports the reward `{name}` as {brief(value)}, which is not a finite number below 1e30."
        ) from None


def task_message(prompt: Prompt, sample_index: int) -> dict[str, Any]:
    """Return the row without its ground truth: only what the policy may know."""
    return {
        "task": prompt.row.task,
        "index": prompt.index,
        "attempt": sample_index,
        "messages": [dict(message) for message in prompt.row.prompt],
        "question": prompt.row.question,
        "tools": [dict(tool) for tool in prompt.tools],
        "model": MODEL,
    }


async def attempt(
    gateway: Gateway,
    session: Session,
    sample_index: int,
    run: Callable[[Access], Coroutine[Any, Any, Mapping[str, float]]],
    *,
    seconds: float,
    wants_report: bool = False,
) -> Trajectory:
    """Make one attempt with a program. Raises the engine's error.

    run: starts the program, and returns the rewards that it reports. wants_report: whether a program without a report has failed.
    """
    fault = ""
    reported: Mapping[str, float] = {}
    async with gateway.admit(session) as access:
        try:
            reported = await access.unless_broken(run(access), seconds)
        except TimeoutError:
            fault = f"The program was not done after {seconds:g} seconds (rollout.agent.seconds)."
        except ProgramFailure as failure:
            fault = str(failure)
        if wants_report and not reported and not fault and access.conversation.session.turns:
            fault = "The program has reported no reward."
        return _came_to(access, sample_index, fault=fault, reported=reported)


def _came_to(access: Access, sample_index: int, *, fault: str, reported: Mapping[str, float]) -> Trajectory:
    """Return the trajectory. If a limit of ours ended the session, the program's later failure does not count."""
    conversation = access.conversation
    session = conversation.session
    if not session.turns and not fault:
        fault = "The program has ended without asking the policy."
    reason = conversation.over or ("program_failed" if fault else _ending(session))
    return trajectory_of(
        session,
        sample_index,
        stop_reason=reason,
        calls=conversation.calls(),
        reported=reported,
        fault=fault if reason == "program_failed" else "",
    )


def _ending(session: Session) -> StopReason:
    last = session.turns[-1]
    cut_off = last.completion.finish_reason == "length" and not last.answer.calls
    return "turn_length" if cut_off else "answered"
