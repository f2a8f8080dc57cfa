"""Stage `score`: grade completions and estimate scores with intervals.

Reads completions only: another extractor rescores them without a model.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GREEDY
from dagrpo.evaluation import conversations, verdicts
from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.outcomes import (
    BY_SCORER,
    PROPORTIONS,
    SCORES,
    WITHOUT_PICTURES,
    Outcomes,
    differing,
    outcomes,
    outcomes_by,
    pass_counts,
    scorers_of,
    values_per_problem,
)
from dagrpo.evaluation.statistics import Estimate, Resampling, bootstrap, wilson
from dagrpo.rewards.grading import Grader, worker_count
from dagrpo.rewards.verifiers import SCORERS, get_verifier
from dagrpo.rollout.table import ROLLOUTS, blind, read_table, sighted
from dagrpo_answers.verifier import Extractor, Parts, Verdict

OF_BLIND = "correct_without_pictures"
MOST_WORKERS = 8  # scores of many tasks and seeds are graded side by side
RATES = ("truncation_rate", "missing_answer_rate", "unverifiable_rate", "mean_completion_tokens")


def score(completions: Path, scoring: Scoring) -> tuple[pa.Table, dict[str, Any]]:
    """Grade every completion of a file; return the scores table and the content of scores.json.

    The table has the columns SCORES, and one for each published scorer.
    """
    everything = read_table(completions, ROLLOUTS)
    table, hidden = sighted(everything), blind(everything)
    name = table.column("verifier")[0].as_py()
    verifier, scorers = get_verifier(name), scoring.scorers_for(name)
    try:
        with Grader(scoring.verify_seconds, min(MOST_WORKERS, worker_count()), scoring.unit_tests) as grader:
            graded = {each: grade_all(table, each, grader, votes=verifier.votes) for each in get_args(Extractor)}
            if hidden.num_rows:
                graded = {name: with_blind(scores, grade_all(hidden, name, grader)) for name, scores in graded.items()}
            by_scorer = {BY_SCORER + scorer.name: verdicts.by_scorer(table, scorer, grader) for scorer in scorers}
    except UserError as error:
        raise UserError(f"{completions}, {error}") from None
    scores = graded[scoring.extractor]
    for name, correct in by_scorer.items():
        scores = scores.append_column(name, pa.array(correct, pa.bool_()))
    summary = summarise({**graded, scoring.extractor: scores}, scoring, votes=verifier.votes)
    if verifier.parts is not None:
        summary["parts_by_extractor"] = {name: _parts_had(verifier.parts, each) for name, each in graded.items()}
    return scores, summary


def _parts_had(parts_of: Parts, scores: pa.Table) -> dict[str, float]:
    """Return the share of all parts of the ground truths (instructions) that greedy and sampled completions have.

    An answer names the parts that it has; an excluded attempt has none.
    """
    had, asked = Counter[str](), Counter[str]()
    names = ("extracted", "ground_truth", "sample_index")
    for extracted, truth, sample in zip(*(scores.column(name).to_pylist() for name in names), strict=True):
        kind = "greedy" if sample == GREEDY else "sampled"
        had[kind] += len(extracted.split(", ")) if extracted else 0
        asked[kind] += len(parts_of("", truth, "strict"))
    return {kind: had[kind] / number for kind, number in asked.items()}


def grade_all(completions: pa.Table, extractor: Extractor, grader: Grader, *, votes: bool = False) -> pa.Table:
    """Return a table with columns SCORES, one row per completion. Raises UserError if a ground truth is invalid for its verifier."""
    scores = verdicts.scores_of(completions, extractor, grader)
    columns = verdicts.columns(scores, completions)
    columns |= {name: pa.nulls(completions.num_rows, SCORES.field(name).type) for name in ("vote", OF_BLIND)}
    if votes:
        problems = completions.column("problem_index").to_pylist()
        columns["vote"] = verdicts.votes(problems, scores, extractor, grader)
    return pa.table({name: columns.get(name, _column(completions, name)) for name in SCORES.names}, schema=SCORES)


def with_blind(scores: pa.Table, without_pictures: pa.Table) -> pa.Table:
    """Return the scores with the result of each problem without its pictures, on the row of its greedy completion.

    A problem without pictures keeps its result.
    """
    right = dict(
        zip(without_pictures["problem_index"].to_pylist(), without_pictures["correct"].to_pylist(), strict=True)
    )
    rows = scores.select(["problem_index", "sample_index", "correct"]).to_pylist()
    values = [
        right.get(row["problem_index"], row["correct"]) if row["sample_index"] == GREEDY else None for row in rows
    ]
    place = scores.schema.get_field_index(OF_BLIND)
    return scores.set_column(place, SCORES.field(OF_BLIND), pa.array(values, pa.bool_()))


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    return table.column(name) if name in table.column_names else None


def summarise(graded: Mapping[Extractor, pa.Table], scoring: Scoring, *, votes: bool) -> dict[str, Any]:
    """Return the content of scores.json, from the scores by each extractor; without `votes` there is no maj_at_k.

    Without sampled completions their metrics are left out. An unverifiable completion counts as not right, and separately: a score
    lies between its value and its value plus the unverifiable rate. `conversations` is included if an attempt called a tool, had several
    turns or went wrong; its excluded attempts are part of the unverifiable rate. `greedy_without_pictures` is included if problems were
    attempted without their pictures, `scorers` if there are published ones, whose undecided completions count as not right.
    """
    scores = graded[scoring.extractor]
    evaluated = outcomes(scores, votes=votes)
    conversation_metrics = conversations.conversations(scores)
    return {
        "task": evaluated.task,
        "problems": len(evaluated.problems),
        "samples_per_problem": evaluated.samples,
        "extractor": scoring.extractor,
        "confidence": scoring.confidence,
        "bootstrap": {"draws": scoring.bootstrap_draws, "seed": scoring.bootstrap_seed},
        **_metrics(evaluated, resampling_of(scoring)),
        **_rates(scores),
        "accuracy_by_extractor": {
            name: _by_kind(table, table.column("correct").to_pylist()) for name, table in graded.items()
        },
        **({"scorers": by_scorer} if (by_scorer := _by_scorer(scores, scoring)) else {}),
        **({"conversations": conversation_metrics} if conversation_metrics else {}),
    }


def _by_scorer(scores: pa.Table, scoring: Scoring) -> dict[str, Any]:
    """Return the metrics by each published scorer, and the number of completions on which it differs from the main one."""
    resampling, sources = resampling_of(scoring), {each.name: each.source for each in map(SCORERS.get, scoring.also)}
    return {
        name: {
            "source": sources[name],
            **_metrics(outcomes_by(name, scores), resampling),
            "differing": differing(name, scores),
            "undecided": scores.column(BY_SCORER + name).null_count,
            "completions": scores.num_rows,
        }
        for name in scorers_of(scores)
    }


def resampling_of(scoring: Scoring) -> Resampling:
    return Resampling(confidence=scoring.confidence, draws=scoring.bootstrap_draws, seed=scoring.bootstrap_seed)


def _metrics(evaluated: Outcomes, resampling: Resampling) -> dict[str, Any]:
    greedy = wilson(int(evaluated.greedy.sum()), len(evaluated.greedy), resampling.confidence)
    metrics: dict[str, Any] = {"greedy": greedy.as_dict()}
    if evaluated.blind is not None:
        without = wilson(int(evaluated.blind.sum()), len(evaluated.blind), resampling.confidence)
        metrics[WITHOUT_PICTURES] = without.as_dict()
    k = evaluated.samples
    if k:
        estimates = {name: bootstrap(values, resampling) for name, values in values_per_problem(evaluated).items()}
        metrics["mean_at_k"] = {"k": k, **estimates[f"mean_at_{k}"].as_dict()}
        metrics["pass_at_k"] = {str(n): estimates[f"pass_at_{n}"].as_dict() for n in pass_counts(k)}
        if evaluated.answers is not None:
            metrics["maj_at_k"] = {"k": k, **estimates[f"maj_at_{k}"].as_dict()}
    return metrics


def _by_kind(scores: pa.Table, values: Sequence[float | bool]) -> dict[str, float]:
    numbers = np.asarray(values, dtype=np.float64)
    greedy = np.asarray(scores.column("sample_index").to_pylist()) == GREEDY
    means = {"greedy": float(numbers[greedy].mean())}
    if not greedy.all():
        means["sampled"] = float(numbers[~greedy].mean())
    return means


def _rates(scores: pa.Table) -> dict[str, dict[str, float]]:
    return {
        "truncation_rate": _by_kind(scores, scores.column("truncated").to_pylist()),
        "missing_answer_rate": _verdict_rate(scores, "missing"),
        "unverifiable_rate": _verdict_rate(scores, "unverifiable"),
        "mean_completion_tokens": _by_kind(scores, scores.column("completion_tokens").to_pylist()),
    }


def _verdict_rate(scores: pa.Table, verdict: Verdict) -> dict[str, float]:
    return _by_kind(scores, pc.equal(scores.column("verdict"), verdict).to_pylist())


def estimates_of(summary: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the estimates in a scores.json by flat names such as greedy, mean_at_4, pass_at_2, maj_at_4, greedy_by_math_verify."""
    by_scorer = {
        f"{name}_by_{scorer}": estimate
        for scorer, metrics in summary.get("scorers", {}).items()
        for name, estimate in _estimates(metrics).items()
    }
    return _estimates(summary) | by_scorer


def _estimates(metrics: Mapping[str, Any]) -> dict[str, Estimate]:
    found = {name: metrics[name] for name in PROPORTIONS if name in metrics}
    if "mean_at_k" in metrics:
        found[f"mean_at_{metrics['mean_at_k']['k']}"] = metrics["mean_at_k"]
        found |= {f"pass_at_{n}": each for n, each in metrics["pass_at_k"].items()}
    if "maj_at_k" in metrics:
        found[f"maj_at_{metrics['maj_at_k']['k']}"] = metrics["maj_at_k"]
    return {name: Estimate(value=e["value"], low=e["low"], high=e["high"]) for name, e in found.items()}


def metrics_to_log(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the summary's numbers under flat names such as greedy, greedy_low, mean_at_4, pass_at_2_high."""
    flat: dict[str, float] = {}
    for name, estimate in estimates_of(summary).items():
        flat |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    for rate in RATES:
        flat |= {f"{rate}_{kind}": value for kind, value in summary[rate].items()}
    for extractor, shares in summary.get("parts_by_extractor", {}).items():
        flat |= {f"parts_{extractor}_{kind}": share for kind, share in shares.items()}
    return flat | conversations.metrics_to_log(summary.get("conversations", {}))


def rows_to_show(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the summary as lines for a person."""
    estimates = [
        (
            name.replace("_at_", "@").replace("_by_", " by "),
            f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})",
        )
        for name, estimate in estimates_of(summary).items()
    ]
    rates = [
        (f"{rate.replace('_', ' ')}, {kind}", f"{value:.3f}") for rate in RATES for kind, value in summary[rate].items()
    ]
    return estimates + rates + conversations.rows_to_show(summary.get("conversations", {}))
