"""Turns, calls and users in the report: tables and selected attempts.

A fixed rule selects the attempts. Left out for an experiment whose attempts are single turns without calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from dagrpo.core.escape import visible
from dagrpo.report import format
from dagrpo.report.examples import LONGEST_SHOWN
from dagrpo.report.inputs import VARIANTS, Inputs, Variant
from dagrpo.report.pictures import TRAINING
from dagrpo.report.rollouts import last_step
from dagrpo.rollout.table import has_conversations
from dagrpo.rollout.trajectory import GREEDY
from dagrpo.rollout.transcript import Call, Transcript, Utterance, best_and_worst, transcript

NOTHING: Mapping[str, float] = {"turns": 1.0, "calls": 0.0, "called": 0.0, "excluded": 0.0}  # of a single turn
_PicturesOf = Callable[[int], tuple[str, ...]]
NEEDED = ("task", "question", "completion", "messages", "calls", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One policy on one task: greedy attempts, means over seeds, as text."""

    policy: Variant
    accuracy: str
    turns: str
    calls: str
    called: str
    fine: str  # share of the calls that went well
    excluded: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Frequencies of the outcomes in a task, as shares that add up to 1; means over seeds."""

    task: str
    statuses: Mapping[Variant, Mapping[str, float]]  # of calls
    ends: Mapping[Variant, Mapping[str, float]]  # of attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Attempts of the first seed, to read."""

    title: str
    best: Sequence[Transcript]
    worst: Sequence[Transcript]
    pictures: Sequence[tuple[str, ...]]  # of the problem of each, first of the best, then of the worst, as data URIs


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The report's part about conversations."""

    rows: Mapping[str, Sequence[PolicyRow]]  # by task, those without conversations too
    shares: Sequence[Shares]  # of the tasks that have any
    attempts: Sequence[Attempts]


def conversations(inputs: Inputs, count: int) -> Conversations | None:
    """Collect everything on conversations, with `count` best and worst attempts of each kind; None without conversations."""
    talking = [task for task in inputs.tasks if any("conversations" in each for each in _summaries(inputs, task))]
    trained = _of_training(inputs, count)
    if not talking and trained is None:
        return None
    return Conversations(
        rows={task: [_row(inputs, task, policy) for policy in VARIANTS] for task in inputs.tasks},
        shares=[_shares(inputs, task) for task in talking],
        attempts=[*([trained] if trained else []), *(_of_evaluation(inputs, task, count) for task in talking)],
    )


def _summaries(inputs: Inputs, task: str) -> list[Mapping[str, Any]]:
    return [inputs.summary(task, policy, seed) for policy in VARIANTS for seed in inputs.seeds]


def _row(inputs: Inputs, task: str, policy: Variant) -> PolicyRow:
    summaries = [inputs.summary(task, policy, seed) for seed in inputs.seeds]
    found = [each.get("conversations", {}) for each in summaries]
    mean = {
        name: _mean([each.get(name, {}).get("greedy", default) for each in found]) for name, default in NOTHING.items()
    }
    fine = [
        each["call_statuses"]["greedy"].get("ok", 0.0) for each in found if each and each["call_statuses"]["greedy"]
    ]
    return PolicyRow(
        policy=policy,
        accuracy=format.percent(_mean([each["greedy"]["value"] for each in summaries])),
        turns=f"{mean['turns']:.2f}",
        calls=f"{mean['calls']:.2f}",
        called=format.percent(mean["called"]),
        fine=format.percent(_mean(fine)) if fine else format.EN_DASH,
        excluded=format.percent(mean["excluded"]),
    )


def _shares(inputs: Inputs, task: str) -> Shares:
    def of(name: str, policy: Variant) -> dict[str, float]:
        found = [inputs.summary(task, policy, seed).get("conversations", {}).get(name, {}) for seed in inputs.seeds]
        known = [each["greedy"] for each in found if each.get("greedy")]
        return {
            key: _mean([each.get(key, 0.0) for each in known])
            for key in sorted({key for each in known for key in each})
        }

    return Shares(
        task=task,
        statuses={policy: of("call_statuses", policy) for policy in VARIANTS},
        ends={policy: of("stop_reasons", policy) for policy in VARIANTS},
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _of_training(inputs: Inputs, count: int) -> Attempts | None:
    step, table = last_step(inputs, inputs.seeds[0])
    if any(name not in table.column_names for name in NEEDED) or not has_conversations(table):
        return None
    return _chosen(f"In training, step {step}", table, count, partial(inputs.pictures.of, TRAINING))


def _of_evaluation(inputs: Inputs, task: str, count: int) -> Attempts:
    scores = inputs.evaluations[task, "trained", inputs.seeds[0]].scores
    greedy = pa.array([index == GREEDY for index in scores["sample_index"].to_pylist()])
    return _chosen(f"Greedy on {task}, trained policy", scores.filter(greedy), count, partial(inputs.pictures.of, task))


def _chosen(title: str, table: pa.Table, count: int, pictures: _PicturesOf) -> Attempts:
    order = ["problem_index", "turns", "reward" if "reward" in table.column_names else "correct"]
    best, worst = best_and_worst(table.select(order).to_pylist(), count, count)
    shown = {row: readable(transcript(table.slice(row, 1).to_pylist()[0])) for row in (*best, *worst)}
    return Attempts(
        title=title,
        best=[shown[row] for row in best],
        worst=[shown[row] for row in worst],
        pictures=[pictures(shown[row].problem_index) for row in (*best, *worst)],
    )


def readable(read: Transcript, longest: int = LONGEST_SHOWN) -> Transcript:
    """Return the transcript with every text cut and control characters made visible. Not HTML-escaped: the template does that."""

    def shown(text: str) -> str:
        return visible(text, longest)

    def readable_call(call: Call) -> Call:
        return Call(
            name=shown(call.name), arguments=shown(call.arguments), status=call.status, result=shown(call.result)
        )

    return replace(
        read,
        question=shown(read.question),
        ground_truth=shown(read.ground_truth),
        extracted=None if read.extracted is None else shown(read.extracted),
        fault=shown(read.fault),
        utterances=tuple(
            Utterance(
                speaker=utterance.speaker,
                text=shown(utterance.text.strip()),
                thinking=shown(utterance.thinking),
                calls=tuple(map(readable_call, utterance.calls)),
            )
            for utterance in read.utterances
        ),
    )
