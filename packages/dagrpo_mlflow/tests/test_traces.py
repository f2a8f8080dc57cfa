"""Attempts arrive in MLflow as traces of their run, once, however often they are written."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Span, Trace, TraceInfo, TraceState
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient
from packages.dagrpo_mlflow.tests.conftest import Crash, CrashingClient, execution, stage_record, stage_runs, write
from tests.rollout import conversations as made

from dagrpo.report.attempt import Attempt, attempt_of, attempts_of
from dagrpo.report.samples import evenly, ranked
from dagrpo_mlflow.names import as_written
from dagrpo_mlflow.read import Contents
from dagrpo_mlflow.store import open_client, tracking_uri
from dagrpo_mlflow.traces import log_traces, traces_of

ROWS = (made.with_tool(0), made.mended(1), made.alone(2), made.corrected(3), made.excluded(4), made.hostile(5))
REWARDS = (1.0, 0.9, 0.3, 0.1, 0.0, -0.1)
TABLE = made.training_table(ROWS, REWARDS, step=10)


def attempts(count: int) -> list[Attempt]:
    """Attempts of the table as a sync chooses them."""
    return attempts_of(TABLE, evenly(ranked(TABLE), count))


def traces(chosen: list[Attempt], experiment: str = "1", run_id: str = "r") -> list[tuple[TraceInfo, list[Span]]]:
    """MLflow's objects for attempts."""
    return traces_of(chosen, experiment=experiment, run_id=run_id, name="n", time_ms=1_700_000_000_000)


def traces_in(root: Path) -> list[Trace]:
    """Every trace that MLflow holds of the experiment, as it lists them."""
    client = open_client(tracking_uri(root))
    experiment = client.get_experiment_by_name("demo")
    found = TracingClient(tracking_uri(root)).search_traces(
        locations=[experiment.experiment_id], order_by=["timestamp_ms DESC"]
    )
    return list(found)


def held(trace: Trace) -> tuple[Any, ...]:
    """All that a trace says, but for ids that MLflow draws itself."""
    assessments = sorted((each.name, repr(each.to_dictionary().get("feedback"))) for each in trace.info.assessments)
    spans = sorted((span.span_id, span.parent_id, span.name, repr(span.attributes)) for span in trace.data.spans)
    return trace.info.trace_id, trace.info.request_time, sorted(trace.info.tags), assessments, spans


@pytest.fixture
def recorded(project: Path) -> Path:
    """A project in which attempts of a stage are recorded."""
    write(project, execution(stage_record()), Contents(traces=[attempts(3)]))
    return project


def test_a_trace_has_a_span_per_turn_and_per_call(recorded: Path) -> None:
    best, between, worst = traces_in(recorded)
    spans = best.data.spans
    assert [(span.name, span.span_type) for span in spans] == [
        ("arithmetic_tool 0", "AGENT"),
        ("turn 1", "CHAT_MODEL"),
        ("calculator", "TOOL"),
        ("turn 2", "CHAT_MODEL"),
    ]
    root, first, call, second = spans
    assert [span.parent_id for span in spans] == [None, root.span_id, first.span_id, root.span_id]
    assert (call.inputs, call.outputs) == ({"expression": "12 * 7"}, "84")
    assert call.get_attribute("status") == "ok"
    assert second.inputs == {"messages": [{"role": "tool", "content": "84"}]}
    assert second.get_attribute("mlflow.chat.tokenUsage") == {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    assert [trace.info.tags["problem"] for trace in (best, between, worst)] == ["0", "2", "5"]


def test_a_trace_belongs_to_its_run_and_says_what_it_is_worth(recorded: Path) -> None:
    best = traces_in(recorded)[0]
    (run,) = stage_runs(recorded)
    assert best.info.trace_metadata["mlflow.sourceRun"] == run.info.run_id
    worth = {each.name: each.feedback.value for each in best.info.assessments if each.feedback}
    assert worth == {"reward": 1.0, "reward_accuracy": 1.0, "verdict": "right", "correct": True}
    (truth,) = [each.expectation.value for each in best.info.assessments if each.expectation]
    assert truth == "84"
    assert best.info.tags["step"] == "10"


@pytest.mark.parametrize("calls", range(1, 4))
def test_writing_that_dies_after_any_call_is_completed_by_the_next(project: Path, calls: int) -> None:
    client: MlflowClient = open_client(tracking_uri(project))
    experiment = client.create_experiment("demo")
    run_id = client.create_run(experiment).info.run_id

    def log(calls: float) -> None:
        tracing: Any = CrashingClient(TracingClient(tracking_uri(project)), calls)
        log_traces(tracing, traces(attempts(2), experiment, run_id), experiment)

    with pytest.raises(Crash):
        log(calls)
    log(math.inf)
    interrupted = [held(trace) for trace in traces_in(project)]
    assert [len(spans) for *_, spans in interrupted] == [4, 4]
    assert [len(assessments) for *_, assessments, _ in interrupted] == [5, 5]


def test_an_excluded_attempt_and_a_broken_call_are_errors() -> None:
    (info, _), (_, spans) = traces(attempts_of(TABLE, [4, 1]))
    assert info.state == TraceState.ERROR
    assert [(span.span_type, span.status.status_code == "OK") for span in spans[1:]] == [
        ("CHAT_MODEL", True), ("TOOL", False), ("CHAT_MODEL", True), ("TOOL", True), ("CHAT_MODEL", True),
    ]  # fmt: skip


def test_nothing_that_a_policy_wrote_is_rendered_as_markdown() -> None:
    assert as_written("84") == "84"
    assert as_written("5\n#### 5") == "```text\n5\n#### 5\n```"
    assert as_written("```\n# out") == "````text\n```\n# out\n````", "no text ends its own block"
    said = {"messages": [{"role": "user", "content": "**x**"}]}
    assert as_written(said) == {"messages": [{"role": "user", "content": "```text\n**x**\n```"}]}


def test_hostile_text_is_escaped_and_long_text_is_cut() -> None:
    ((info, spans),) = traces([attempt_of(TABLE.slice(5, 1).to_pylist()[0])])
    assert "\x1b" not in "".join(map(str, (info.to_dict(), *(span.to_dict() for span in spans)))).replace(
        "\\x1b", "\x1b"
    )
    foreign = attempt_of(TABLE.slice(0, 1).to_pylist()[0])
    named = replace(foreign.read, verdict="right\x1b[31m\n" + "x" * 99, components={"format\x1b\n": 1.0})
    ((info, _),) = traces([replace(foreign, read=named)])
    graded = {
        each.name: each.to_dictionary()["feedback"]["value"] for each in info.assessments if each.name != "ground_truth"
    }
    assert len(graded.pop("verdict")) <= 30
    assert all(name.isprintable() for name in graded)
    long = made.attempt(0, 0, [made.assistant("x" * 20_000)])
    ((_, spans),) = traces([attempt_of(long, 1000)])
    assert len(spans[1].outputs["content"]) < 1100
