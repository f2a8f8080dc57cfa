"""Summary of a report for the MLflow runs of its seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.config.schema import Params
from dagrpo.evaluation.held_out_table import with_figures
from dagrpo.evaluation.outcomes import group_of
from dagrpo.evaluation.scoring import estimates_of
from dagrpo.report.comparison import MetricComparison, TaskComparison, compare
from dagrpo.report.first_step import doubts
from dagrpo.report.format import headline, includes_zero, points, points_interval
from dagrpo.report.inputs import VARIANTS, Inputs
from dagrpo.report.parameters import Parameter, recorded, value_of
from dagrpo.report.results import summary_markdown
from dagrpo.report.times import SeedTimes
from dagrpo.tracking.checkpoints import DIGEST, Checkpoint, checkpoints_in
from dagrpo.utils.files import read_object

PER_ATTEMPT = ("greedy", "mean_at_")  # metrics in columns beside those of other runs: base, trained, difference
DIGITS = 4  # that fit a column of a table
RATES = ("timing/tokens_per_second",)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of an experiment, as the report's page has them."""

    inputs: Inputs
    comparisons: Sequence[TaskComparison]
    parameters: Mapping[str, Sequence[Parameter]]
    overrides: Mapping[str, Any]
    doubts: Sequence[str]


def findings_of(inputs: Inputs, own_params: Mapping[str, Any], overrides: Mapping[str, Any]) -> Findings:
    """Compute an experiment's results. `own_params`: the parameters of the stage report."""
    parameters = recorded(inputs.provenance, own_params, Params().model_dump())
    return Findings(
        inputs=inputs,
        comparisons=[compare(inputs, task) for task in inputs.tasks],
        parameters=parameters,
        overrides=overrides,
        doubts=doubts(inputs, parameters),
    )


def summaries(findings: Findings, times: Sequence[SeedTimes]) -> dict[int | None, Json]:
    """Return the summary of each seed; with several seeds, also that of all together under None."""
    inputs = findings.inputs
    records = [read_object(path) for path in inputs.provenance]
    shared = [] if len(inputs.seeds) == 1 else [(None, findings.comparisons)]
    of_seeds = [
        (seed, [compare(replace(inputs, seeds=(seed,)), task) for task in inputs.tasks]) for seed in inputs.seeds
    ]
    return {
        seed: {
            "text": _text(findings, comparisons),
            "figures": {**_figures(comparisons), **_rates(times, seed)},
            "tags": _tags(findings, comparisons),
            "data": _data_sets(inputs, records),
            "policies": [] if seed is None else _policies(inputs, records, seed),
            "verdict": _verdict(findings, seed),
        }
        for seed, comparisons in [*shared, *of_seeds]
    }


def recorded_curves(inputs: Inputs, seed: int | None) -> pa.Table | None:
    """Return all curves of a seed's training; None for several seeds."""
    if seed is None:
        return None
    held_out = inputs.held_out.get(seed)
    return inputs.metrics[seed] if held_out is None else with_figures(inputs.metrics[seed], held_out)


def _text(findings: Findings, comparisons: Sequence[TaskComparison]) -> str:
    """Return the description, headline first, because a list of runs shows its start."""
    head = [headline(comparison) for comparison in comparisons]
    control = ["**This is a control**: its rewards say nothing."] if _is_control(findings) else []
    table = summary_markdown(findings.inputs.experiment, comparisons, findings.overrides, findings.doubts)
    return "\n\n".join([*control, *head, table.partition("\n")[2].strip()])


def _is_control(findings: Findings) -> bool:
    return value_of(findings.parameters, "reward.permuted") == "true"


def _metrics_per_attempt(comparison: TaskComparison) -> Iterator[tuple[str, MetricComparison]]:
    group = group_of(comparison.task, oracle=comparison.oracle)
    for metric in comparison.metrics:
        if metric.metric.startswith(PER_ATTEMPT):
            yield f"{group}/{metric.metric}", metric


def _figures(comparisons: Sequence[TaskComparison]) -> dict[str, float]:
    """Return the figures without their bounds: those are tags, since as figures they would be drawn as separate bars."""
    figures: dict[str, float] = {}
    for comparison in comparisons:
        for name, metric in _metrics_per_attempt(comparison):
            figures |= {
                f"{name}_base": round(metric.base.value, DIGITS),
                f"{name}_trained": round(metric.trained.value, DIGITS),
                f"{name}_difference": round(metric.difference.value, DIGITS),
            }
    return figures


def _tags(findings: Findings, comparisons: Sequence[TaskComparison]) -> dict[str, str]:
    intervals = {
        f"interval.{name}_difference": f"{points(metric.difference.value)} ({points_interval(metric.difference)})"
        for comparison in comparisons
        for name, metric in _metrics_per_attempt(comparison)
    }
    return {**intervals, **({"control": "true"} if _is_control(findings) else {})}


def _rates(times: Sequence[SeedTimes], seed: int | None) -> dict[str, float]:
    """Return means over the steps of one seed or of all; {} if another machine trained."""
    own = [each for each in times if seed is None or each.seed == str(seed)]
    means = {name: [mean for each in own if (mean := each.mean(name)) is not None] for name in RATES}
    return {f"{name}_mean": sum(means) / len(means) for name, means in means.items() if means}


def _data_sets(inputs: Inputs, records: Sequence[Mapping[str, Any]]) -> list[Json]:
    read = {path: digest for record in records for path, digest in record["inputs"].items()}
    splits = {"train": "training", "test": "evaluation"}
    return [
        _data_set(path, digest, splits[Path(path).stem])
        for path, digest in sorted(read.items())
        if path.startswith(f"data/{inputs.experiment}/")
        and Path(path).suffix == ".parquet"
        and Path(path).stem in splits
    ]


def _data_set(path: str, digest: str, context: str) -> Json:
    return {"name": f"{Path(path).parent.name}/{Path(path).stem}", "digest": digest, "path": path, "context": context}


def _policies(inputs: Inputs, records: Sequence[Mapping[str, Any]], seed: int) -> list[Json]:
    steps = {"base": 0, "trained": inputs.metrics[seed].num_rows}
    tests = {data["name"]: data for data in _data_sets(inputs, records)}
    policies = []
    for variant in VARIANTS:
        for checkpoint in _evaluated(records, variant, seed):
            scores = [
                {
                    "task": group_of(task, oracle=inputs.summary(task, variant, seed)["oracle"]),
                    "data": tests[f"{task}/test"],
                    "values": {name: e.value for name, e in estimates_of(inputs.summary(task, variant, seed)).items()},
                }
                for task in inputs.tasks
                if f"{task}/test" in tests
            ]
            policies.append(
                {
                    "name": variant,
                    "digest": checkpoint.digest,
                    "folder": checkpoint.evaluated,
                    "step": steps[variant],
                    "scores": scores,
                }
            )
    return policies


def _evaluated(records: Sequence[Mapping[str, Any]], policy: str, seed: int) -> Iterator[Checkpoint]:
    for record in records:
        for checkpoint in checkpoints_in(record["outputs"]):
            if checkpoint.place.policy == policy and checkpoint.place.tag == DIGEST and checkpoint.seed == str(seed):
                yield checkpoint


def _verdict(findings: Findings, seed: int | None) -> Json:
    """Return the experiment's verdict over all seeds. The first seed's policy represents it: the best would be chosen by luck."""
    reason = " ".join(headline(comparison) for comparison in findings.comparisons)
    first = findings.inputs.seeds[0]
    if _is_control(findings):
        return {"is_better": False, "reason": f"A control never becomes champion. {reason}"}
    if seed != first:
        return {"is_better": False, "reason": f"Seed {first} stands for this experiment. {reason}"}
    differences = [comparison.greedy.difference for comparison in findings.comparisons]
    is_better = all(not includes_zero(each) and each.value > 0 for each in differences)
    return {"is_better": is_better, "reason": reason}
