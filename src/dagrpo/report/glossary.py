"""Glossary of the report: definitions of its metrics, and terms."""

from collections.abc import Iterable

from dagrpo.core.metrics import Metric, all_metrics, definition_of

INTERVAL = (
    "Interval",
    "A percentile bootstrap over problems (and over seeds, if there are several), unless stated otherwise. It resamples "
    "problems rather than completions, since completions of one problem are not independent.",
)
DIGEST = (
    "Digest",
    "The sha256 of a file's bytes; for a checkpoint, that of its manifest, which lists the digest of each file. Equal digests "
    "mean equal contents.",
)
TURN = (
    "Turn",
    "One completion of the policy. The results of its tool calls or the reply of a simulated user follow it, then the next "
    "turn. The policy is not trained on the tokens of results and replies.",
)


def glossary(names: Iterable[str], *, has_turns: bool) -> list[tuple[str, str]]:
    """Return label and meaning of each labelled metric among the recorded names, scores first, then terms."""
    recorded = {definition_of(name) for name in names}
    metrics = [metric for metric in all_metrics() if metric.label and metric in recorded]
    scores_first = sorted(metrics, key=lambda metric: metric.group != "eval")
    return [*((each.label, _meaning(each)) for each in scores_first), *([TURN] if has_turns else []), INTERVAL, DIGEST]


def _meaning(metric: Metric) -> str:
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    complement = metric.plot.complement if metric.plot else ""
    drawn = f" The figure shows the complement: {complement[0].lower()}{complement[1:]}." if complement else ""
    return f"{metric.meaning}{better}{drawn}"
