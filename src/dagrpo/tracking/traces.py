"""Attempts as MLflow traces of a run.

A trace has a span for the attempt, one per turn and one per call. Spans are in order but have no duration: a table of attempts
holds no times, which differ between runs. Ids derive from the run and the index of the trace in it, so that writing is
idempotent: a trace that MLflow has is not begun again, and a span that it has is replaced.
"""

from collections.abc import Iterator, Mapping, Sequence

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
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey
from mlflow.tracing.utils import dump_span_attribute_value

from dagrpo.core.escape import one_line
from dagrpo.report.attempt import Attempt
from dagrpo.tracking.names import as_written
from dagrpo.tracking.span_contents import SpanContent, last_text, span_contents, title_of, with_total
from dagrpo.utils.files import digest_of

SOURCE = AssessmentSource(source_type="CODE", source_id="dagrpo")
MOST_TRACES = 500  # of a run: five steps of at most 100
PREVIEW = 1000  # characters in MLflow's list of traces
NANOSECONDS = 1_000_000  # of a millisecond
FIRST = 1  # the step whose attempts are those of the policy that training begins with
TICK = 1000  # nanoseconds between two spans: for their order, since their times are unknown


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
        contents = list(span_contents(attempt))
        # MLflow lists the latest first: so the first of these stands at the top
        info = _info(attempt, trace_id, experiment, metadata | _token_usage(contents), time_ms - number)
        traces.append((info, list(_spans(contents, trace_id, time_ms * NANOSECONDS))))
    return traces


def log_traces(
    client: TracingClient, traces: Sequence[tuple[TraceInfo, list[Span]]], experiment: str, *, is_new: bool = False
) -> None:
    """Bring traces into an experiment.

    is_new: the run was created just now, and has none of them. Raises NotImplementedError if the server is too old for traces,
    MlflowException and others if it has a problem.
    """
    if not traces:
        return
    known = set() if is_new else _known(client, traces[0][0], experiment)
    for info, _ in traces:
        if info.trace_id not in known:
            client.start_trace(info)
    client.log_spans(experiment, [span for _, spans in traces for span in spans])


def _known(client: TracingClient, info: TraceInfo, experiment: str) -> set[str]:
    of_run = f"metadata.`{TraceMetadataKey.SOURCE_RUN}` = '{info.trace_metadata[TraceMetadataKey.SOURCE_RUN]}'"
    traces = client.search_traces(
        locations=[experiment], filter_string=of_run, include_spans=False, max_results=MOST_TRACES
    )
    return {trace.info.trace_id for trace in traces}


def _info(attempt: Attempt, trace_id: str, experiment: str, metadata: Mapping[str, str], time_ms: int) -> TraceInfo:
    """Return a trace without its spans but with its assessments: one call writes both, so that they exist once or not at all."""
    origin = {"source": SOURCE, "trace_id": trace_id, "create_time_ms": time_ms, "last_update_time_ms": time_ms}
    feedback = [Feedback(name=name, value=value, **origin) for name, value in _feedback(attempt).items()]
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=time_ms,
        execution_duration=0,
        state=TraceState.ERROR if attempt.is_broken else TraceState.OK,
        request_preview=attempt.read.question[:PREVIEW],
        response_preview=last_text(attempt)[:PREVIEW],
        trace_metadata=dict(metadata),
        tags={TraceTagKey.TRACE_NAME: title_of(attempt), **_tags(attempt)},
        assessments=[*feedback, Expectation(name="ground_truth", value=attempt.read.ground_truth, **origin)],
    )


def _tags(attempt: Attempt) -> dict[str, str]:
    read = attempt.read
    tags = {
        "task": one_line(read.task, 60),
        "problem": str(read.problem_index),
        "sample": "greedy" if read.is_greedy else str(read.sample_index),
        "stop_reason": one_line(read.stop_reason, 60),
    }
    tags |= {"step": str(attempt.row["step"])} if attempt.row.get("step") is not None else {}
    return tags | ({"fault": one_line(read.fault, 200)} if read.fault else {})


def _feedback(attempt: Attempt) -> dict[str, float | bool | str]:
    read = attempt.read
    rewards = {} if read.reward is None else {"reward": read.reward}
    rewards |= {f"reward_{one_line(name, 60)}": value for name, value in read.components.items()}
    rounded = {name: float(f"{value:.6g}") for name, value in rewards.items()}  # a float32 in the table
    verdict = None if read.verdict is None else one_line(read.verdict, 30)
    grades = {"verdict": verdict, "correct": attempt.row.get("correct")}
    return rounded | {name: value for name, value in grades.items() if value is not None}


def _token_usage(contents: Sequence[SpanContent]) -> dict[str, str]:
    """Return the sums over the turns, which MLflow lists beside a trace."""
    turns = [with_total(each.usage) for each in contents if each.usage]
    sums = {name: sum(usage[name] for usage in turns) for name in turns[0]} if turns else {}
    return {TraceMetadataKey.TOKEN_USAGE: dump_span_attribute_value(sums)} if sums else {}


def _spans(contents: Sequence[SpanContent], trace_id: str, start: int) -> Iterator[Span]:
    """Yield the root, its turns, and the calls below the turn that made them."""
    root = parent = _span_id(trace_id, 0)
    for number, content in enumerate(contents):
        begin = start + number * TICK
        if content.kind == SpanType.AGENT:
            yield _span(trace_id, number, None, content, (start, start + len(contents) * TICK))
            continue
        above = root if content.kind == SpanType.CHAT_MODEL else parent
        yield _span(trace_id, number, above, content, (begin, begin + TICK))
        parent = _span_id(trace_id, number) if content.kind == SpanType.CHAT_MODEL else parent


def _span(trace_id: str, number: int, parent: str | None, content: SpanContent, times: tuple[int, int]) -> Span:
    usage = {SpanAttributeKey.CHAT_USAGE: with_total(content.usage)} if content.usage else {}
    attributes = {
        SpanAttributeKey.REQUEST_ID: trace_id,
        SpanAttributeKey.SPAN_TYPE: content.kind,
        SpanAttributeKey.INPUTS: content.inputs if content.kind == SpanType.TOOL else as_written(content.inputs),
        SpanAttributeKey.OUTPUTS: as_written(content.outputs),
        **usage,
        **content.attributes,
    }
    return Span.from_dict(
        {
            "trace_id": trace_id,
            "span_id": _span_id(trace_id, number),
            "parent_span_id": parent,
            "name": content.name,
            "start_time_unix_nano": times[0],
            "end_time_unix_nano": times[1],
            "status": {"code": "OK" if content.is_ok else "ERROR", "message": ""},
            "attributes": {key: dump_span_attribute_value(value) for key, value in attributes.items()},
        }
    )


def _span_id(trace_id: str, number: int) -> str:
    return digest_of([trace_id, number])[:16]
