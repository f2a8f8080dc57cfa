"""A comparison in sentences: which is better, and by how much."""

from dagrpo.cli.compare.scores import Metric, TaskPair
from dagrpo.report.format import metric_label, percent, plural, points, points_interval

WORDS = {"better": True, "worse": False}
NOTHING_DIFFERS = "On record, nothing differs between them in parameters, data, code, environment or runtime."
RUNTIME_TITLE = "Runtime settings that differ (they change results only by rounding)"


def verdict(pair: TaskPair) -> str:
    """Return the result of one task in a sentence, by greedy accuracy."""
    greedy = pair.metrics[0]
    change = f"{points(greedy.difference.value)} points, {100 * pair.confidence:g}% interval {points_interval(greedy.difference)}"
    scores = f"{percent(greedy.second.value)} of {pair.second} against {percent(greedy.first.value)} of {pair.first}"
    if not greedy.is_shown:
        return f"{pair.task}: no difference shown between {pair.second} and {pair.first} ({scores}: {change})."
    word = "better" if greedy.difference.value > 0 else "worse"
    return f"{pair.task}: {pair.second} is {word} than {pair.first} ({scores}: {change})."


def scope(pair: TaskPair) -> str:
    """Over what the interval was drawn."""
    told = f"Paired over {plural(pair.problems, 'problem')} that both have met"
    told += f", {pair.left_out:,} met by one alone left out" if pair.left_out else ""
    if not pair.seeds:
        return (
            f"{told}; they share no seed: each one's seeds are averaged, and the interval says nothing of other seeds."
        )
    if len(pair.seeds) == 1:
        return f"{told}, and seed {pair.seeds[0]} alone: the interval says nothing of other seeds."
    return f"{told}, and the {len(pair.seeds)} seeds of both; the interval resamples problems and seeds."


def others(pair: TaskPair) -> str:
    """Names the metrics that say something else than greedy accuracy does: silence about them would mislead."""
    greedy, *rest = pair.metrics
    said = {
        word: [metric_label(each.name) for each in rest if is_better(each) is wanted] for word, wanted in WORDS.items()
    }
    told = [
        f"{word} by {', '.join(names)}"
        for word, names in said.items()
        if names and is_better(greedy) is not WORDS[word]
    ]
    return f"{pair.second} is {' and '.join(told)}." if told else ""


def is_better(metric: Metric) -> bool | None:
    """Return whether the second experiment is better; None if the interval includes 0."""
    return metric.difference.value > 0 if metric.is_shown else None
