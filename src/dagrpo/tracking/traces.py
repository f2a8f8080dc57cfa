"""Attempts as MLflow traces of a run.

Ids follow from the run and the index of a trace in it, so that writing is idempotent: a trace that MLflow has is not begun again, and
a span that it has is replaced.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow.entities import (
    AssessmentSource,
    Expectation,
    Feedback,
    Span,
    SpanType,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey
from mlflow.tracing.utils import dump_span_attribute_value

from dagrpo.utils.files import digest_of

SOURCE = AssessmentSource(source_type="CODE", source_id="dagrpo")
KINDS = {"turn": SpanType.CHAT_MODEL, "call": SpanType.TOOL}
PREVIEW = 1000  # characters in MLflow's list of traces
NANOSECONDS = 1_000_000  # of a millisecond
PLAIN = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9 ,.?!=:;'()%/-]*)?")  # means nothing in Markdown
WITH_TEXT = ("messages", "content", "reasoning_content")
FIRST = "1"  # the step whose attempts are those of the policy that training begins with
TICK = 1000  # nanoseconds between two spans: for their order, since their times are unknown
Trace = Mapping[str, Any]  # as attempts.py makes it
logger = logging.getLogger(__name__)


def made_of(
    traces: Sequence[Trace], *, experiment: str, run_id: str, name: str, time_ms: int, model_id: str | None = None
) -> list[tuple[TraceInfo, list[Span]]]:
    """Return MLflow's objects for the traces of a run. `name`: the same at every sync, and another for other traces;
    `model_id`: the policy that the stage has read. Training's own from its second step on is not a logged model, since it is not kept.

    Raises any error to which a trace of another shape leads.
    """
    made = []
    for number, trace in enumerate(traces):
        trace_id = f"tr-{digest_of([name, number])[:32]}"
        # MLflow lists the latest first: so the first of these stands at the top
        model = model_id if trace["tags"].get("step", FIRST) == FIRST else None
        whose = {TraceMetadataKey.SOURCE_RUN: run_id, **({TraceMetadataKey.MODEL_ID: model} if model else {})}
        info = _info(trace, trace_id, experiment, whose, time_ms - number)
        made.append((info, list(_spans(trace, trace_id, time_ms * NANOSECONDS))))
    return made


def log_traces(client: TracingClient, traces: Sequence[tuple[TraceInfo, list[Span]]], experiment: str) -> None:
    """Bring traces into an experiment.

    A server too old for traces goes without them. Raises MlflowException and others if the server has a problem.
    """
    try:
        for info, _ in traces:
            if not _is_there(client, info.trace_id):
                client.start_trace(info)
        client.log_spans(experiment, [span for _, spans in traces for span in spans])
    except NotImplementedError as error:
        logger.warning("the traces of a run are left out: %s", error)


def _is_there(client: TracingClient, trace_id: str) -> bool:
    try:
        client.get_trace_info(trace_id)
    except MlflowException as error:
        if error.error_code == ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            return False
        raise
    return True


def _info(trace: Trace, trace_id: str, experiment: str, whose: Mapping[str, str], time_ms: int) -> TraceInfo:
    """Return a trace without its spans, with its assessments: written in one call, so that these are there once or not at all."""
    about = {"source": SOURCE, "trace_id": trace_id, "create_time_ms": time_ms, "last_update_time_ms": time_ms}
    feedback = [Feedback(name=name, value=value, **about) for name, value in trace["feedback"].items()]
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=time_ms,
        execution_duration=0,
        state=TraceState.OK if trace["ok"] else TraceState.ERROR,
        request_preview=trace["input"][:PREVIEW],
        response_preview=trace["output"][:PREVIEW],
        trace_metadata={**whose, **_token_usage(trace)},
        tags={TraceTagKey.TRACE_NAME: trace["name"], **trace["tags"]},
        assessments=[*feedback, Expectation(name="ground_truth", value=trace["expectation"], **about)],
    )


def _token_usage(trace: Trace) -> dict[str, str]:
    """Return the sums over the turns, which MLflow lists beside a trace."""
    known = [_with_total(span["usage"]) for span in trace["spans"] if span["usage"]]
    sums = {name: sum(usage[name] for usage in known) for name in known[0]} if known else {}
    return {TraceMetadataKey.TOKEN_USAGE: dump_span_attribute_value(sums)} if sums else {}


def _with_total(usage: Mapping[str, int]) -> dict[str, int]:
    return {**usage, "total_tokens": usage["input_tokens"] + usage["output_tokens"]}


def _spans(trace: Trace, trace_id: str, start: int) -> Iterator[Span]:
    """Yield the root, its turns, and the calls below the turn that made them."""
    whole = {"inputs": trace["input"], "outputs": trace["output"], "attributes": trace["attributes"]}
    root = _span_id(trace_id, 0)
    ends = start + (len(trace["spans"]) + 1) * TICK
    yield _span(trace_id, 0, None, {**whole, "name": trace["name"], "ok": trace["ok"]}, SpanType.AGENT, start, ends)
    parent = root
    for number, span in enumerate(trace["spans"], start=1):
        above = root if span["kind"] == "turn" else parent
        begins = start + number * TICK
        yield _span(trace_id, number, above, span, KINDS[span["kind"]], begins, begins + TICK)
        parent = _span_id(trace_id, number) if span["kind"] == "turn" else parent


def _span(
    trace_id: str, number: int, parent: str | None, span: Mapping[str, Any], kind: str, start: int, end: int
) -> Span:
    usage = {SpanAttributeKey.CHAT_USAGE: _with_total(span["usage"])} if span.get("usage") else {}
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_id,
        SpanAttributeKey.SPAN_TYPE: kind,
        SpanAttributeKey.INPUTS: span["inputs"] if kind == SpanType.TOOL else as_written(span["inputs"]),
        SpanAttributeKey.OUTPUTS: as_written(span["outputs"]),
        **usage,
        **span["attributes"],
    }
    return Span.from_dict(
        {
            "trace_id": trace_id,
            "span_id": _span_id(trace_id, number),
            "parent_span_id": parent,
            "name": span["name"],
            "start_time_unix_nano": start,
            "end_time_unix_nano": end,
            "status": {"code": "OK" if span["ok"] else "ERROR", "message": ""},
            "attributes": {key: dump_span_attribute_value(value) for key, value in attributes.items()},
        }
    )


def as_written(value: Any) -> Any:
    """Return the value with its texts as blocks of code, unless plain: MLflow renders Markdown, `#### 53` as a heading."""
    if isinstance(value, Mapping):
        return {key: as_written(inner) if key in WITH_TEXT else inner for key, inner in value.items()}
    if isinstance(value, list):
        return [as_written(inner) for inner in value]
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return value
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", value)), default=0))
    return f"{fence}text\n{value}\n{fence}"


def _span_id(trace_id: str, number: int) -> str:
    return digest_of([trace_id, number])[:16]
