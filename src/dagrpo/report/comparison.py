"""Comparison of base and trained policy: each metric and its paired difference."""

from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from dagrpo.evaluation.choice import Choices, spread_of, with_choice
from dagrpo.evaluation.config import CHOSEN
from dagrpo.evaluation.outcomes import PROPORTIONS, label_of, values_per_problem
from dagrpo.evaluation.power import detectable_of
from dagrpo.evaluation.statistics import Estimate, Floats, Resampling, bootstrap, paired_difference, wilson
from dagrpo.report.inputs import VARIANTS, Inputs, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric of two policies, such as base and trained, as shares between 0 and 1; the difference is second minus first."""

    name: str  # greedy, greedy_without_pictures, mean_at_4, pass_at_2, maj_at_4
    first: Estimate
    second: Estimate
    difference: Estimate
    detectable: float  # the least difference that these seeds and problems show, with probability 0.8

    @property
    def is_significant(self) -> bool:
        """Return True if the interval of the difference excludes 0."""
        return not self.difference.low <= 0 <= self.difference.high


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """Every metric of one task over all seeds, and the greedy accuracy seed by seed."""

    task: str
    oracle: bool = False  # a tool or the simulated user knew the answers
    problems: int
    samples: int
    seeds: tuple[int, ...]
    confidence: float
    metrics: tuple[MetricComparison, ...]
    greedy_by_seed: tuple[MetricComparison, ...]  # as `seeds`

    @property
    def label(self) -> str:
        """The task's name beside each of its scores."""
        return label_of(self.task, oracle=self.oracle)

    @property
    def greedy(self) -> MetricComparison:
        return self.metrics[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerComparison:
    """Both policies by one scorer, over all seeds."""

    name: str
    metrics: tuple[MetricComparison, ...]  # greedy, and the mean over the sampled completions
    differing: tuple[int, ...] | None  # completions of each policy that it judges otherwise than the main one
    completions: tuple[int, ...]  # of base and trained; copies of another seed's count once


def compare_scorers(inputs: Inputs, task: str) -> tuple[ScorerComparison, ...]:
    """Compare the two policies by the main scorer and each published one; () without a published one."""
    first = inputs.evaluations[task, "base", inputs.seeds[0]]
    names = [None, *first.by_scorer] if first.by_scorer else []
    return tuple(_by_scorer(inputs, task, name) for name in names)


def _by_scorer(inputs: Inputs, task: str, name: str | None) -> ScorerComparison:
    first, resampling = inputs.evaluations[task, "base", inputs.seeds[0]], inputs.resampling(task)
    base, trained = (values_of(inputs, task, variant, name) for variant in VARIANTS)
    metrics = ("greedy", f"mean_at_{first.outcomes.samples}")
    sampled = [inputs.seeds_sampled(task, variant) for variant in VARIANTS]
    return ScorerComparison(
        name=f"{first.summary['extractor']} (main)" if name is None else name,
        metrics=tuple(compared(each, base[each], trained[each], resampling) for each in metrics if each in base),
        differing=None
        if name is None
        else tuple(
            sum(inputs.summary(task, variant, seed)["scorers"][name]["differing"] for seed in seeds)
            for variant, seeds in zip(VARIANTS, sampled, strict=True)
        ),
        completions=tuple(first.scores.num_rows * len(seeds) for seeds in sampled),
    )


def compare_chosen(inputs: Inputs) -> list[TaskComparison]:
    """Compare the base policy with the chosen one on each task, with the choice in the intervals; [] if none was chosen."""
    choices = list(inputs.choices.values())
    return [_with_choice(compare(inputs, task, CHOSEN), choices) for task in (inputs.tasks if choices else ())]


def _with_choice(comparison: TaskComparison, choices: Choices) -> TaskComparison:
    task, confidence = comparison.task, comparison.confidence
    by_seed = zip(comparison.greedy_by_seed, choices, strict=True)
    return replace(
        comparison,
        metrics=tuple(with_choices(metric, task, confidence, (), choices) for metric in comparison.metrics),
        greedy_by_seed=tuple(with_choices(metric, task, confidence, (), [own]) for metric, own in by_seed),
    )


def with_choices(
    metric: MetricComparison, task: str, confidence: float, first: Choices, second: Choices
) -> MetricComparison:
    """Return a metric with the choices of both policies in its intervals, as if they were independent; none of a policy not chosen."""
    one, other = (spread_of(own, task, metric.name) for own in (first, second))
    return replace(
        metric,
        first=with_choice(metric.first, one, confidence),
        second=with_choice(metric.second, other, confidence),
        difference=with_choice(metric.difference, hypot(one, other), confidence, bounds=(-1.0, 1.0)),
    )


def compare(inputs: Inputs, task: str, policy: Variant = "trained") -> TaskComparison:
    """Compare a policy with the base policy on one task. With two seeds or more, intervals also resample the seeds."""
    base, trained = (values_of(inputs, task, variant) for variant in ("base", policy))
    resampling = inputs.resampling(task)
    first = inputs.evaluations[task, "base", inputs.seeds[0]].outcomes
    by_seed = [
        compared("greedy", base["greedy"][[i]], trained["greedy"][[i]], resampling) for i in range(len(inputs.seeds))
    ]
    return TaskComparison(
        task=task,
        oracle=inputs.summary(task, "base", inputs.seeds[0])["oracle"],
        problems=len(first.problems),
        samples=first.samples,
        seeds=inputs.seeds,
        confidence=resampling.confidence,
        metrics=tuple(compared(name, base[name], trained[name], resampling) for name in base if name != "pass_at_1"),
        greedy_by_seed=tuple(by_seed),
    )


def values_of(inputs: Inputs, task: str, variant: Variant, scorer: str | None = None) -> dict[str, Floats]:
    """Return each metric's values, [seeds, problems]. The caller leaves out pass@1, which equals mean@k. scorer: a published one."""
    evaluations = [inputs.evaluations[task, variant, seed] for seed in inputs.seeds]
    per_seed = [values_per_problem(each.outcomes if scorer is None else each.by_scorer[scorer]) for each in evaluations]
    return {name: np.stack([values[name] for values in per_seed]) for name in per_seed[0]}


def compared(name: str, first: Floats, second: Floats, resampling: Resampling) -> MetricComparison:
    """Compare one metric of two policies, each [seeds, problems], with the paired difference."""
    return MetricComparison(
        name=name,
        first=estimate_of(name, first, resampling, second),
        second=estimate_of(name, second, resampling, first),
        difference=paired_difference(first, second, resampling),
        detectable=detectable_of(second - first, resampling.confidence),
    )


def estimate_of(name: str, values: Floats, resampling: Resampling, *beside: Floats) -> Estimate:
    """Estimate a metric with the interval that `score` gives for one seed; for several, bootstrap seeds and problems.

    values, and those `beside` them, which get the same kind of interval: [seeds, problems]; of a mean over seeds [1, problems], which
    is a proportion only where the seeds agree on each problem.
    """
    if name in PROPORTIONS and len(values) == 1 and np.isin((values, *beside), (0, 1)).all():
        return wilson(int(values.sum()), values.size, resampling.confidence)
    return bootstrap(values, resampling)
