"""Selected attempts of a table as traces in plain JSON.

A trace has a span for the attempt, one per turn and one per call; traces.py converts them to MLflow's objects. It has the order of
events but not their duration: a table holds no times, which differ from run to run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from dagrpo.core.escape import one_line, visible
from dagrpo.core.types import BROKEN
from dagrpo.rollout.transcript import SINGLE_TURN, Call, Transcript, Utterance, segments, transcript

LONGEST = 10_000  # characters of one text
ORDERED_BY = ("reward", "correct")
TRACED_STEPS = 5  # of a training run, evenly from the first to the last


def traced_steps(last: int) -> list[int]:
    """Return the steps of a training run whose attempts are traced: 1, 31, 61, 90, 120 of 120."""
    count = min(TRACED_STEPS, last)
    return [1 + round(number * (last - 1) / max(count - 1, 1)) for number in range(count)]


def traces_of(table: pa.Table, count: int) -> list[dict[str, Any]]:
    """Return the traces of up to `count` attempts: the best, the worst, and others evenly between them, best first."""
    order = next((name for name in ORDERED_BY if name in table.column_names), None)
    worth = [float(value or 0) for value in table[order].to_pylist()] if order else [0.0] * table.num_rows
    falling = sorted(range(len(worth)), key=lambda row: -worth[row])
    count = min(count, len(falling))
    places = [round(number * (len(falling) - 1) / max(count - 1, 1)) for number in range(count)]
    return [trace_of(table.slice(falling[place], 1).to_pylist()[0]) for place in places]


def trace_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace of the attempt in a row of a rollout table or a scores table."""
    read = transcript(row)
    return {
        "name": f"{one_line(read.task, 60)} {read.problem_index}",
        "input": visible(read.question, LONGEST),
        "output": visible(read.utterances[-1].text, LONGEST) if read.utterances else "",
        "ok": read.stop_reason not in BROKEN,
        "tags": _tags(read, row.get("step")),
        "attributes": _attributes(read),
        "feedback": _feedback(read, row.get("correct")),
        "expectation": visible(read.ground_truth, LONGEST),
        "spans": list(_spans(read, _usage({**SINGLE_TURN, **row}))),
    }


def _attributes(read: Transcript) -> dict[str, float]:
    counts: dict[str, float] = {"turns": read.turns, "calls": len(read.calls), "tokens": read.tokens}
    return counts if read.advantage is None else {**counts, "advantage": float(f"{read.advantage:.6g}")}


def _tags(read: Transcript, step: int | None) -> dict[str, str]:
    tags = {
        "task": one_line(read.task, 60),
        "problem": str(read.problem_index),
        "sample": "greedy" if read.is_greedy else str(read.sample_index),
        "stop_reason": one_line(read.stop_reason, 60),
    }
    tags |= {"step": str(step)} if step is not None else {}
    return tags | ({"fault": one_line(read.fault, 200)} if read.fault else {})


def _feedback(read: Transcript, correct: bool | None) -> dict[str, float | bool | str]:
    """Return the attempt's reward and its grades, by name."""
    rewards = {} if read.reward is None else {"reward": read.reward}
    rewards |= {f"reward_{name}": value for name, value in read.components.items()}
    judged = {"verdict": read.verdict, "correct": correct}
    rounded = {name: float(f"{value:.6g}") for name, value in rewards.items()}  # a float32 in the table
    return rounded | {name: value for name, value in judged.items() if value is not None}


def _usage(row: Mapping[str, Any]) -> list[dict[str, int]]:
    """Return the tokens before each turn and in it; [] if turns cannot be distinguished, or the table has no tokens."""
    if "prompt_ids" not in row:
        return []
    sequences = segments(row)
    usage, before = [], 0
    for segment in sequences[0]:
        if segment.written:
            usage.append({"input_tokens": before, "output_tokens": len(segment.token_ids)})
        before += len(segment.token_ids)
    return usage if len(sequences) == 1 and len(usage) == row["turns"] else []


def _spans(read: Transcript, usage: list[dict[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield turns and calls in order. The messages to the policy before a turn are the input of its span."""
    heard = [{"role": "user", "content": visible(read.question, LONGEST)}]
    turn = 0
    for utterance in read.utterances:
        if utterance.speaker == "policy":
            yield _turn(turn, utterance, heard, usage[turn] if turn < len(usage) else {})
            yield from map(_call, utterance.calls)
            turn += 1
        heard = _heard(utterance) if utterance.speaker == "policy" else [*heard, *_heard(utterance)]


def _turn(number: int, utterance: Utterance, heard: list[dict[str, str]], usage: Mapping[str, int]) -> dict[str, Any]:
    text = visible(utterance.text, LONGEST)
    thinking = {"reasoning_content": visible(utterance.thinking, LONGEST)} if utterance.thinking else {}
    return {
        "name": f"turn {number + 1}",
        "kind": "turn",
        "inputs": {"messages": heard},
        "outputs": {"role": "assistant", "content": text, **thinking},
        "attributes": {"calls": len(utterance.calls)},
        "usage": dict(usage),
        "ok": True,
    }


def _call(call: Call) -> dict[str, Any]:
    return {
        "name": one_line(call.name, 60) or "unreadable call",
        "kind": "call",
        "inputs": visible(call.arguments, LONGEST),
        "outputs": visible(call.result, LONGEST),
        "attributes": {"status": one_line(call.status, 30)},
        "usage": {},
        "ok": call.status in ("ok", ""),
    }


def _heard(utterance: Utterance) -> list[dict[str, str]]:
    """Return a message as the policy's input: the results of its calls, or another speaker's text."""
    if utterance.speaker == "policy":
        return [{"role": "tool", "content": visible(call.result, LONGEST)} for call in utterance.calls]
    return [{"role": utterance.speaker, "content": visible(utterance.text, LONGEST)}]
