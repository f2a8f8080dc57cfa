"""Numbers in words, and the conclusions that an interval supports."""

from collections.abc import Mapping
from typing import Any

from dagrpo.evaluation.outcomes import WITHOUT_PICTURES
from dagrpo.evaluation.statistics import Estimate
from dagrpo.report.comparison import TaskComparison
from dagrpo.utils.files import canonical_json

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
MINUS = "\N{MINUS SIGN}"
EN_DASH = "\N{EN DASH}"


def percent(share: float) -> str:
    """Format a share: 0.881 -> 88.1%"""
    return f"{100 * share:.1f}%"


def points(difference: float) -> str:
    """Format a difference in points, not percent: 0.199 -> +19.9"""
    rounded = round(100 * difference, 1)
    sign = "+" if rounded > 0 else MINUS if rounded < 0 else PLUS_MINUS
    return f"{sign}{abs(rounded):.1f}"


def percent_interval(estimate: Estimate) -> str:
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"


def points_interval(estimate: Estimate) -> str:
    """Format both ends in points, an end of 0 without a sign: 0.0 to +2.2"""
    return " to ".join(points(end).removeprefix(PLUS_MINUS) for end in (estimate.low, estimate.high))


NAMED = {"greedy": "Greedy accuracy", WITHOUT_PICTURES: "Greedy accuracy without pictures"}


def metric_label(metric: str) -> str:
    """Label a metric: greedy -> Greedy accuracy; pass_at_4 -> pass@4"""
    return NAMED.get(metric) or metric.replace("_at_", "@")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def includes_zero(difference: Estimate) -> bool:
    return difference.low <= 0 <= difference.high


def least_shown(difference: Estimate, detectable: float, problems: int, seeds: int) -> str:
    """Return a sentence on the least difference that a comparison shows, if the one that it saw is smaller; else ""."""
    if not includes_zero(difference) or abs(difference.value) >= detectable:
        return ""
    return (
        f"It had little chance to show a difference as small as this one: {plural(problems, 'problem')} and {plural(seeds, 'seed')} "
        f"show one of {100 * detectable:.1f} points four times in five."
    )


def override_notice(overrides: Mapping[str, Any]) -> str:
    """Return the notice on the page of an override run."""
    changes = ", ".join(f"{key} = {canonical_json(value)}" for key, value in sorted(overrides.items()))
    return f"This is an override run, not the experiment of params.yaml: {changes}."


def headline(comparison: TaskComparison) -> str:
    """Return the result of one task in one sentence, with its interval."""
    greedy = comparison.greedy
    level, interval = f"{100 * comparison.confidence:g}%", points_interval(greedy.difference)
    change = f"{points(greedy.difference.value)} points, {level} interval {interval}"
    span = f"from {percent(greedy.first.value)} to {percent(greedy.second.value)}"
    if includes_zero(greedy.difference):
        return f"No difference shown on {comparison.label}: greedy accuracy went {span} ({change})."
    verb = "raised" if greedy.difference.value > 0 else "lowered"
    return f"GRPO {verb} greedy accuracy on {comparison.label} {span} ({change})."


def interpretation(comparison: TaskComparison) -> str:
    """Explain what the interval of the greedy difference means."""
    return f"{_verdict(comparison)} {_scope(comparison)} {_other_metrics(comparison)}".strip()


def _verdict(comparison: TaskComparison) -> str:
    greedy = comparison.greedy
    if includes_zero(greedy.difference):
        neither = "The interval includes 0: this evaluation shows neither that training changed greedy accuracy nor that it did not."
        least = least_shown(greedy.difference, greedy.detectable, comparison.problems, len(comparison.seeds))
        return f"{neither} {least}".strip()
    direction = "more" if greedy.difference.value > 0 else "fewer"
    return f"The interval excludes 0: the trained policy solves {direction} of these problems than the base policy."


def _scope(comparison: TaskComparison) -> str:
    problems = plural(comparison.problems, "problem")
    if len(comparison.seeds) == 1:
        return (
            f"It covers the choice of the {problems}, not the randomness of training: only one seed was trained, "
            "and another could give a different result."
        )
    return (
        f"It covers the choice of the {problems} and of the training seed, but {len(comparison.seeds)} seeds give only a "
        "rough estimate of the variation between seeds."
    )


def _other_metrics(comparison: TaskComparison) -> str:
    """Name the metrics whose interval has another side of 0 than that of greedy accuracy, or no side.

    The score without pictures is not compared: a policy that reads pictures better need not guess better.
    """
    expected = _sign(comparison.greedy.difference)
    differing = [
        row for row in comparison.metrics[1:] if row.name != WITHOUT_PICTURES and _sign(row.difference) != expected
    ]
    if not differing:
        return ""
    named = [
        f"{metric_label(row.name)} ({points(row.difference.value)}, {points_interval(row.difference)})"
        for row in differing
    ]
    verb = "disagree" if any(_sign(row.difference) for row in differing) else "show no such difference"
    return f"Other metrics {verb}: {', '.join(named)}."


def _sign(difference: Estimate) -> int:
    return 0 if includes_zero(difference) else 1 if difference.value > 0 else -1
