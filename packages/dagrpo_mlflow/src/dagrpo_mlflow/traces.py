"""Attempts as MLflow traces of a run.

A trace has a span for the attempt, one per turn and one per call. Spans are in order but have no duration: a table of attempts
holds no times, which differ between runs. All ids derive from the run and the index of the trace in it, so that writing is
idempotent: MLflow replaces what it has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow.entities import (
    Assessment,
    AssessmentSource,
    Expectation,
    Feedback,
    Span,
    SpanType,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey
from mlflow.tracing.utils import dump_span_attribute_value

from dagrpo.core.escape import one_line
from dagrpo.report.attempt import Attempt
from dagrpo.rollout.transcript import SINGLE_TURN, Call, Utterance, segments
from dagrpo.utils.files import digest_of
from dagrpo_mlflow.names import as_written

SOURCE = AssessmentSource(source_type="CODE", source_id="dagrpo")
PREVIEW = 1000  # characters in MLflow's list of traces
NANOSECONDS = 1_000_000  # of a millisecond
FIRST = 1  # the step whose attempts are those of the policy that training begins with
TICK = 1000  # nanoseconds between two spans: for their order, since their times are unknown
Usage = Mapping[str, int]  # tokens in MLflow's names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of one span."""

    name: str
    kind: str  # one of SpanType
    inputs: Any
    outputs: Any
    attributes: Mapping[str, Any]
    is_ok: bool = True
    usage: Usage = field(default_factory=dict)


def traces_of(
    attempts: Sequence[Attempt], *, experiment: str, run_id: str, name: str, time_ms: int, model_id: str | None = None
) -> list[tuple[TraceInfo, list[Span]]]:
    """Return MLflow's objects for the attempts of a run.

    name: the same at every sync, and different for other attempts; model_id: the policy that the stage has read. The policies
    of training's later steps are not logged models, since they are not stored.
    """
    traces = []
    for number, attempt in enumerate(attempts):
        trace_id = f"tr-{digest_of([name, number])[:32]}"
        model = model_id if attempt.row.get("step", FIRST) == FIRST else None
        metadata = {TraceMetadataKey.SOURCE_RUN: run_id, **({TraceMetadataKey.MODEL_ID: model} if model else {})}
        contents = list(_contents(attempt))
        # MLflow lists the latest first: so the first of these stands at the top
        info = _info(attempt, trace_id, experiment, metadata | _token_usage(contents), time_ms - number)
        traces.append((info, list(_spans(contents, trace_id, time_ms * NANOSECONDS))))
    return traces


def log_traces(client: TracingClient, traces: Sequence[tuple[TraceInfo, list[Span]]], experiment: str) -> None:
    """Bring traces into an experiment. Raises NotImplementedError if the server is too old for traces."""
    for info, _ in traces:
        client.start_trace(info)
    if traces:
        client.log_spans(experiment, [span for _, spans in traces for span in spans])


def _info(attempt: Attempt, trace_id: str, experiment: str, metadata: Mapping[str, str], time_ms: int) -> TraceInfo:
    """Return a trace without its spans but with its assessments."""
    read = attempt.read
    origin = {"source": SOURCE, "trace_id": trace_id, "create_time_ms": time_ms, "last_update_time_ms": time_ms}
    assessments: list[Assessment] = [Feedback(name=name, value=value, **origin) for name, value in _grades(attempt)]
    assessments.append(Expectation(name="ground_truth", value=read.ground_truth, **origin))
    for each in assessments:
        each.assessment_id = f"a-{digest_of([trace_id, each.name])[:32]}"
    tags = {
        TraceTagKey.TRACE_NAME: _title_of(attempt),
        "task": one_line(read.task, 60),
        "problem": str(read.problem_index),
        "sample": "greedy" if read.is_greedy else str(read.sample_index),
        "stop_reason": one_line(read.stop_reason, 60),
        **({"step": str(attempt.row["step"])} if attempt.row.get("step") is not None else {}),
        **({"fault": one_line(read.fault, 200)} if read.fault else {}),
    }
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=time_ms,
        execution_duration=0,
        state=TraceState.ERROR if attempt.is_broken else TraceState.OK,
        request_preview=read.question[:PREVIEW],
        response_preview=_last_text(attempt)[:PREVIEW],
        trace_metadata=dict(metadata),
        tags=tags,
        assessments=assessments,
    )


def _grades(attempt: Attempt) -> Iterator[tuple[str, float | bool | str]]:
    read = attempt.read
    rewards = {} if read.reward is None else {"reward": read.reward}
    rewards |= {f"reward_{one_line(name, 60)}": value for name, value in read.components.items()}
    for name, value in rewards.items():
        yield name, float(f"{value:.6g}")  # a float32 in the table
    if read.verdict is not None:
        yield "verdict", one_line(read.verdict, 30)
    if (correct := attempt.row.get("correct")) is not None:
        yield "correct", correct


def _title_of(attempt: Attempt) -> str:
    return f"{one_line(attempt.read.task, 60)} {attempt.read.problem_index}"


def _last_text(attempt: Attempt) -> str:
    return attempt.read.utterances[-1].text if attempt.read.utterances else ""


def _contents(attempt: Attempt) -> Iterator[_Content]:
    """Yield the attempt, then its turns and calls in order. The input of a turn is the messages to the policy before it."""
    read, usage = attempt.read, _usage({**SINGLE_TURN, **attempt.row})
    counts: dict[str, float] = {"turns": read.turns, "calls": len(read.calls), "tokens": read.tokens}
    counts |= {} if read.advantage is None else {"advantage": float(f"{read.advantage:.6g}")}
    yield _Content(
        name=_title_of(attempt),
        kind=SpanType.AGENT,
        inputs=read.question,
        outputs=_last_text(attempt),
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


def _usage(row: Mapping[str, Any]) -> list[Usage]:
    """Return the tokens before each turn and in it; [] if turns cannot be distinguished, or the table has no tokens."""
    if "prompt_ids" not in row:
        return []
    sequences = segments(row)
    usage: list[Usage] = []
    before = 0
    for segment in sequences[0]:
        count = len(segment.token_ids)
        if segment.written:
            usage.append({"input_tokens": before, "output_tokens": count, "total_tokens": before + count})
        before += count
    return usage if len(sequences) == 1 and len(usage) == row["turns"] else []


def _turn(index: int, utterance: Utterance, messages: list[dict[str, str]], usage: Usage) -> _Content:
    thinking = {"reasoning_content": utterance.thinking} if utterance.thinking else {}
    return _Content(
        name=f"turn {index + 1}",
        kind=SpanType.CHAT_MODEL,
        inputs={"messages": messages},
        outputs={"role": "assistant", "content": utterance.text, **thinking},
        attributes={"calls": len(utterance.calls)},
        usage=usage,
    )


def _call(call: Call) -> _Content:
    return _Content(
        name=one_line(call.name, 60) or "unreadable call",
        kind=SpanType.TOOL,
        inputs=call.arguments,
        outputs=call.result,
        attributes={"status": one_line(call.status, 30)},
        is_ok=call.status in ("ok", ""),
    )


def _token_usage(contents: Sequence[_Content]) -> dict[str, str]:
    """Return the sums over the turns, which MLflow lists beside a trace."""
    turns = [each.usage for each in contents if each.usage]
    sums = {name: sum(usage[name] for usage in turns) for name in turns[0]} if turns else {}
    return {TraceMetadataKey.TOKEN_USAGE: dump_span_attribute_value(sums)} if sums else {}


def _spans(contents: Sequence[_Content], trace_id: str, start: int) -> Iterator[Span]:
    """Yield the root, its turns, and the calls below the turn that made them."""
    ids = [digest_of([trace_id, number])[:16] for number in range(len(contents))]
    turn = ids[0]
    for number, content in enumerate(contents):
        is_root, is_call = content.kind == SpanType.AGENT, content.kind == SpanType.TOOL
        turn = turn if is_call else ids[number]
        attributes = {
            SpanAttributeKey.REQUEST_ID: trace_id,
            SpanAttributeKey.SPAN_TYPE: content.kind,
            SpanAttributeKey.INPUTS: content.inputs if is_call else as_written(content.inputs),
            SpanAttributeKey.OUTPUTS: as_written(content.outputs),
            **({SpanAttributeKey.CHAT_USAGE: content.usage} if content.usage else {}),
            **content.attributes,
        }
        begin = start + number * TICK
        yield Span.from_dict(
            {
                "trace_id": trace_id,
                "span_id": ids[number],
                "parent_span_id": None if is_root else turn if is_call else ids[0],
                "name": content.name,
                "start_time_unix_nano": begin,
                "end_time_unix_nano": start + len(contents) * TICK if is_root else begin + TICK,
                "status": {"code": "OK" if content.is_ok else "ERROR", "message": ""},
                "attributes": {key: dump_span_attribute_value(value) for key, value in attributes.items()},
            }
        )
