"""Transcript of an attempt: messages by speaker, and each call's result.

Built from a row of any rollout table, of training or of an evaluation. report/attempt.py prepares it for display.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dagrpo.core.trajectory import GREEDY

Speaker = Literal["policy", "user", "tool", "system"]
SPEAKERS: Mapping[str, Speaker] = {"assistant": "policy", "user": "user", "tool": "tool", "system": "system"}
SINGLE_TURN: Mapping[str, Any] = {"turns": 1, "stop_reason": "answered", "fault": "", "messages": "[]", "calls": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call of a tool."""

    name: str  # "": none could be read
    arguments: str
    status: str  # one of records.CallStatus; "": a program ran the tool itself, and its status is unknown
    result: str  # "": the policy got no result


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """Message after the prompt."""

    speaker: Speaker
    text: str
    thinking: str = ""
    calls: tuple[Call, ...] = ()  # of a turn of the policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Attempt as a person reads it. Columns of training alone are None elsewhere."""

    task: str
    problem_index: int
    sample_index: int
    prompt: str  # as the chat template writes it
    question: str
    ground_truth: str
    utterances: tuple[Utterance, ...]
    turns: int  # of the policy
    tokens: int  # that the policy wrote
    stop_reason: str
    fault: str
    cut: bool  # the last turn, at the token limit
    extracted: str | None
    verdict: str | None
    reward: float | None
    advantage: float | None
    components: Mapping[str, float] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all calls, in order."""
        return tuple(call for utterance in self.utterances for call in utterance.calls)

    @property
    def is_greedy(self) -> bool:
        return self.sample_index == GREEDY


def is_conversation(row: Mapping[str, Any]) -> bool:
    """Return True if an attempt is more than a prompt and a completion."""
    return bool(row.get("calls")) or int(row.get("turns", 1)) > 1


def transcript(row: Mapping[str, Any]) -> Transcript:
    """Return the attempt in a row of a table with columns as in ROLLOUTS, TRAINING_ROLLOUTS or SCORES."""
    row = {**SINGLE_TURN, **row}
    return Transcript(
        task=row["task"],
        problem_index=row["problem_index"],
        sample_index=row["sample_index"],
        prompt=row.get("prompt", row["question"]),
        question=row["question"],
        ground_truth=row["ground_truth"],
        utterances=_utterances(json.loads(row["messages"]), row["calls"], row["completion"]),
        turns=row["turns"],
        tokens=row["completion_tokens"] if "completion_tokens" in row else len(row["completion_ids"]),
        stop_reason=row["stop_reason"],
        fault=row["fault"],
        cut=row["truncated"] if "truncated" in row else row["finish_reason"] == "length",
        extracted=row.get("extracted"),
        verdict=row.get("verdict"),
        reward=row.get("reward"),
        advantage=row.get("advantage"),
        components=dict(row.get("components", ())),
    )


def _utterances(
    messages: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]], completion: str
) -> tuple[Utterance, ...]:
    """Return the messages with their calls. A result is part of its call: the tool's own message is left out for it."""
    if not messages:
        return (Utterance(speaker="policy", text=completion, calls=tuple(map(_recorded, calls))),)
    utterances: list[Utterance] = []
    turn, results = -1, set[str]()
    for message in messages:
        if message["role"] == "assistant":
            turn += 1
            turn_calls = tuple(_recorded(call) for call in calls if call["turn"] == turn)
            results = {call.result for call in turn_calls}
            utterances.append(_of_policy(message, turn_calls or _unrecorded(message)))
        elif message["role"] != "tool" or _text(message.get("content")) not in results:
            utterances.append(
                Utterance(speaker=SPEAKERS.get(message["role"], "system"), text=_text(message.get("content")))
            )
    rest = tuple(_recorded(call) for call in calls if call["turn"] > turn)  # of turns that a program went back from
    return (*utterances, Utterance(speaker="policy", text="", calls=rest)) if rest else tuple(utterances)


def _of_policy(message: Mapping[str, Any], calls: tuple[Call, ...]) -> Utterance:
    thinking = _text(message.get("reasoning_content"))
    return Utterance(speaker="policy", text=_text(message.get("content")), thinking=thinking, calls=calls)


def _recorded(call: Mapping[str, Any]) -> Call:
    return Call(name=call["name"], arguments=call["arguments"], status=call["status"], result=call["result"])


def _unrecorded(message: Mapping[str, Any]) -> tuple[Call, ...]:
    functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    return tuple(
        Call(name=_text(each.get("name")), arguments=_text(each.get("arguments")), status="", result="")
        for each in functions
    )


def _text(content: object) -> str:
    """Return a message's content as text: a text, nothing, or parts of which only the JSON can be shown."""
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Adjacent tokens of one kind. Written ones are one turn: between two turns there is always something."""

    token_ids: tuple[int, ...]
    written: bool  # by the policy, and trained on in this sequence


def segments(row: Mapping[str, Any]) -> tuple[tuple[Segment, ...], ...]:
    """Return the sequences of a row with columns as in ROLLOUTS, each as its segments in order."""
    samples = row.get("samples") or [_one_completion(row)]
    return tuple(_cut(sample["token_ids"], sample["loss_mask"]) for sample in samples)


def _one_completion(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = row["prompt_ids"], row["completion_ids"]
    return {
        "token_ids": [*prompt, *completion],
        "loss_mask": [False] * len(prompt) + [True] * len(completion),
    }


def _cut(token_ids: Sequence[int], mask: Sequence[bool]) -> tuple[Segment, ...]:
    parts: list[Segment] = []
    start = 0
    for end in range(1, len(mask) + 1):
        if end == len(mask) or mask[end] != mask[start]:
            parts.append(Segment(token_ids=tuple(token_ids[start:end]), written=mask[start]))
            start = end
    return tuple(parts)
