"""Summary of a report for the MLflow runs of its seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagrpo.config.schema import Params
from dagrpo.evaluation.config import CHOSEN
from dagrpo.evaluation.outcomes import group_of
from dagrpo.evaluation.scoring import estimates_of
from dagrpo.report.comparison import TaskComparison, compare, compare_chosen
from dagrpo.report.first_step import doubts
from dagrpo.report.format import headline, points, points_interval
from dagrpo.report.inputs import VARIANTS, Inputs
from dagrpo.report.parameters import recorded, value_of
from dagrpo.report.results import chosen_markdown, summary_markdown
from dagrpo.report.times import SeedTimes
from dagrpo.utils.files import read_object
from dagrpo_mlflow.execution import DIGEST, checkpoints_in
from dagrpo_mlflow.models import Policy, Score

PER_ATTEMPT = ("greedy", "mean_at_")  # metrics in columns beside those of other runs: base, trained, difference
DIGITS = 4  # that fit a column of a table
RATE = "timing/tokens_per_second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The contents for the run of a seed, or of all seeds (None)."""

    seed: int | None
    text: str  # Markdown
    figures: Mapping[str, float]
    tags: Mapping[str, str]
    policies: Sequence[Policy] = ()
    comparisons: Sequence[TaskComparison] = ()


def summaries(
    inputs: Inputs, own_params: Mapping[str, Any], overrides: Mapping[str, Any], times: Sequence[SeedTimes]
) -> list[Summary]:
    """Return the summary of each seed, after that of all together if there are several. `own_params`: those of the stage report."""
    parameters = recorded(inputs.provenance, own_params, Params().model_dump())
    is_control, doubtful = value_of(parameters, "reward.permuted") == "true", doubts(inputs, parameters)
    records = [read_object(path) for path in inputs.provenance]
    found = []
    for seed in [*([] if len(inputs.seeds) == 1 else [None]), *inputs.seeds]:
        choices = {each: choice for each, choice in inputs.choices.items() if seed in (None, each)}
        own = replace(inputs, choices=choices, seeds=inputs.seeds if seed is None else (seed,))
        comparisons = [compare(own, task) for task in inputs.tasks]
        head = [headline(comparison) for comparison in comparisons]  # first: a list of runs shows the start
        control = ["**This is a control**: its rewards say nothing."] if is_control else []
        table = summary_markdown(inputs.experiment, comparisons, overrides, doubtful).partition("\n")[2].strip()
        table += chosen_markdown(chosen := compare_chosen(own), choices)
        figures, tags = _figures(comparisons)
        figures |= {
            f"{name.removesuffix('trained')}{CHOSEN}": value
            for name, value in _figures(chosen)[0].items()
            if name.endswith("trained")
        }
        found.append(
            Summary(
                seed=seed,
                text="\n\n".join([*control, *head, table]),
                figures=figures | _rates(times, seed),
                tags=tags | ({"control": "true"} if is_control else {}),
                policies=[] if seed is None else list(_policies(inputs, records, seed)),
                comparisons=comparisons,
            )
        )
    return found


def _figures(comparisons: Sequence[TaskComparison]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the figures, and their bounds as tags: as figures these would be drawn as separate bars."""
    figures, tags = dict[str, float](), dict[str, str]()
    for comparison in comparisons:
        for each in comparison.metrics:
            if each.name.startswith(PER_ATTEMPT):
                name = f"{group_of(comparison.task, oracle=comparison.oracle)}/{each.name}"
                for kind, of in (("base", each.first), ("trained", each.second), ("difference", each.difference)):
                    figures[f"{name}_{kind}"] = round(of.value, DIGITS)
                interval = f"{points(each.difference.value)} ({points_interval(each.difference)})"
                tags[f"interval.{name}_difference"] = interval
    return figures, tags


def _rates(times: Sequence[SeedTimes], seed: int | None) -> dict[str, float]:
    """Return the mean over the steps of one seed or of all; {} if another machine trained."""
    own = [each.mean(RATE) for each in times if seed is None or each.seed == str(seed)]
    means = [mean for mean in own if mean is not None]
    return {f"{RATE}_mean": sum(means) / len(means)} if means else {}


def _policies(inputs: Inputs, records: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Policy]:
    steps = inputs.policies | {"trained": inputs.metrics[seed].num_rows}
    read = {path: digest for record in records for path, digest in record["inputs"].items()}
    tests = {Path(path).parent.name: digest for path, digest in read.items() if Path(path).name == "test.parquet"}
    made = [each for record in records for each in checkpoints_in(record["outputs"])]
    for variant, step in steps.items():
        scores = []
        for task in inputs.tasks:
            result = inputs.summary(task, variant, seed)
            values = {name: each.value for name, each in estimates_of(result).items()}
            group = group_of(task, oracle=result["oracle"])
            scores += (
                [Score(group=group, data=f"{task}/test", digest=tests[task], values=values)] if task in tests else []
            )
        if variant not in VARIANTS:
            yield Policy(checkpoint=None, step=step, scores=tuple(scores))
        for checkpoint in made:
            if checkpoint.policy == variant and checkpoint.tag == DIGEST and checkpoint.seed == str(seed):
                yield Policy(checkpoint=checkpoint, step=step, scores=tuple(scores))
