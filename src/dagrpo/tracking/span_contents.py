"""Contents of a trace's spans: an attempt, its turns and its calls."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow.entities import SpanType

from dagrpo.core.escape import one_line
from dagrpo.report.attempt import Attempt
from dagrpo.rollout.transcript import SINGLE_TURN, Call, Utterance, segments

Usage = Mapping[str, int]  # tokens in MLflow's names


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanContent:
    """The content of one span."""

    name: str
    kind: str  # one of SpanType
    inputs: Any
    outputs: Any
    attributes: Mapping[str, Any]
    is_ok: bool
    usage: Usage = field(default_factory=dict)


def _usage(row: Mapping[str, Any]) -> list[Usage]:
    """Return the tokens before each turn and in it; [] if turns cannot be distinguished, or the table has no tokens."""
    if "prompt_ids" not in row:
        return []
    sequences = segments(row)
    usage: list[Usage] = []
    before = 0
    for segment in sequences[0]:
        if segment.written:
            usage.append({"input_tokens": before, "output_tokens": len(segment.token_ids)})
        before += len(segment.token_ids)
    return usage if len(sequences) == 1 and len(usage) == row["turns"] else []


def span_contents(attempt: Attempt) -> Iterator[SpanContent]:
    """Yield the attempt, then its turns and calls in order. The input of a turn is the messages to the policy before it."""
    read, usage = attempt.read, _usage({**SINGLE_TURN, **attempt.row})
    counts: dict[str, float] = {"turns": read.turns, "calls": len(read.calls), "tokens": read.tokens}
    counts |= {} if read.advantage is None else {"advantage": float(f"{read.advantage:.6g}")}
    yield SpanContent(
        name=title_of(attempt),
        kind=SpanType.AGENT,
        inputs=read.question,
        outputs=last_text(attempt),
        attributes=counts,
        is_ok=not attempt.is_broken,
    )
    messages = [{"role": "user", "content": read.question}]
    turn = 0
    for utterance in read.utterances:
        if utterance.speaker == "policy":
            yield _turn(turn, utterance, messages, usage[turn] if turn < len(usage) else {})
            yield from map(_call, utterance.calls)
            turn += 1
            messages = [{"role": "tool", "content": call.result} for call in utterance.calls]
        else:
            messages = [*messages, {"role": utterance.speaker, "content": utterance.text}]


def _turn(index: int, utterance: Utterance, messages: list[dict[str, str]], usage: Usage) -> SpanContent:
    thinking = {"reasoning_content": utterance.thinking} if utterance.thinking else {}
    return SpanContent(
        name=f"turn {index + 1}",
        kind=SpanType.CHAT_MODEL,
        inputs={"messages": messages},
        outputs={"role": "assistant", "content": utterance.text, **thinking},
        attributes={"calls": len(utterance.calls)},
        is_ok=True,
        usage=usage,
    )


def _call(call: Call) -> SpanContent:
    return SpanContent(
        name=one_line(call.name, 60) or "unreadable call",
        kind=SpanType.TOOL,
        inputs=call.arguments,
        outputs=call.result,
        attributes={"status": one_line(call.status, 30)},
        is_ok=call.status in ("ok", ""),
    )


def title_of(attempt: Attempt) -> str:
    """Return the trace's name: task and problem."""
    return f"{one_line(attempt.read.task, 60)} {attempt.read.problem_index}"


def last_text(attempt: Attempt) -> str:
    """Return the last text of the attempt, of any speaker."""
    return attempt.read.utterances[-1].text if attempt.read.utterances else ""


def with_total(usage: Usage) -> dict[str, int]:
    """Return the tokens of a turn with their sum."""
    return {**usage, "total_tokens": usage["input_tokens"] + usage["output_tokens"]}
