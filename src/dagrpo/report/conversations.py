"""Turns, calls and users in the report: tables and selected attempts.

A fixed rule selects the attempts. Left out for an experiment whose attempts are single turns without calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dagrpo.core.trajectory import GREEDY
from dagrpo.report import format
from dagrpo.report.attempt import Attempt, attempt_of, attempts_of
from dagrpo.report.inputs import VARIANTS, Inputs, Variant
from dagrpo.report.rollouts import has_rollouts, last_step
from dagrpo.report.samples import best_and_worst
from dagrpo.report.splits import TRAINING
from dagrpo.rollout.table import has_conversations, with_texts, without_discarded

NOTHING: Mapping[str, float] = {"turns": 1.0, "calls": 0.0, "called": 0.0, "excluded": 0.0}  # of a single turn
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
class Selection:
    """Best and worst attempts of the first seed, to read."""

    title: str
    best: Sequence[Attempt]
    worst: Sequence[Attempt]
    pictures: Sequence[tuple[str, ...]]  # of the problem of each, first of the best, then of the worst, as data URIs


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The report's part about conversations."""

    rows: Mapping[str, Sequence[PolicyRow]]  # by task, those without conversations too
    shares: Sequence[Shares]  # of the tasks that have any
    attempts: Sequence[Selection]


def conversations(inputs: Inputs, count: int) -> Conversations | None:
    """Collect everything on conversations, with `count` best and worst attempts of each kind; None without conversations."""
    every = [(policy, seed) for policy in VARIANTS for seed in inputs.seeds]
    talking = [task for task in inputs.tasks if any("conversations" in inputs.summary(task, *each) for each in every)]
    trained = _of_training(inputs, count)
    if not talking and trained is None:
        return None
    return Conversations(
        rows={task: [_row(inputs, task, policy) for policy in VARIANTS] for task in inputs.tasks},
        shares=[_shares(inputs, task) for task in talking],
        attempts=[*([trained] if trained else []), *(_of_evaluation(inputs, task, count) for task in talking)],
    )


def _row(inputs: Inputs, task: str, policy: Variant) -> PolicyRow:
    summaries = [inputs.summary(task, policy, seed) for seed in inputs.seeds]
    sections = [each.get("conversations", {}) for each in summaries]
    mean = {
        name: _mean([each.get(name, {}).get("greedy", default) for each in sections])
        for name, default in NOTHING.items()
    }
    fine = [
        each["call_statuses"]["greedy"].get("ok", 0.0) for each in sections if each and each["call_statuses"]["greedy"]
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
        shares = [inputs.summary(task, policy, seed).get("conversations", {}).get(name, {}) for seed in inputs.seeds]
        known = [each["greedy"] for each in shares if each.get("greedy")]
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


def _of_training(inputs: Inputs, count: int) -> Selection | None:
    if not has_rollouts(inputs, inputs.seeds[0]):
        return None
    step, file = last_step(inputs, inputs.seeds[0])
    if any(name not in file.columns for name in NEEDED):
        return None
    table = with_texts(without_discarded(file.short))
    if not has_conversations(table):
        return None
    best, worst = (
        [attempt_of(row) for row in file.rows_of(table, positions)] for positions in best_and_worst(table, count, count)
    )
    return _selection(f"In training, step {step}", best, worst, partial(inputs.pictures.of, TRAINING))


def _of_evaluation(inputs: Inputs, task: str, count: int) -> Selection:
    scores = inputs.evaluations[task, "trained", inputs.seeds[0]].scores
    greedy = scores.filter(pa.array([index == GREEDY for index in scores["sample_index"].to_pylist()]))
    best, worst = (attempts_of(greedy, positions) for positions in best_and_worst(greedy, count, count))
    return _selection(f"Greedy on {task}, trained policy", best, worst, partial(inputs.pictures.of, task))


def _selection(
    title: str, best: Sequence[Attempt], worst: Sequence[Attempt], pictures: Callable[[int], tuple[str, ...]]
) -> Selection:
    images = [pictures(each.read.problem_index) for each in (*best, *worst)]
    return Selection(title=title, best=best, worst=worst, pictures=images)
