"""Tables of the page: set-up, diagnostics beside the scores, glossary."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dagrpo.core.metrics import METRICS, Metric, definition_of
from dagrpo.report import format as wording
from dagrpo.report.comparison import TaskComparison
from dagrpo.report.inputs import VARIANTS, Inputs
from dagrpo.report.parameters import Parameter, value_of

INTERVAL = (
    "Interval",
    "A percentile bootstrap over problems (and over seeds, if there are several), unless stated otherwise. It resamples "
    "problems rather than completions, since completions of one problem are not independent. Over several seeds, Student's "
    "interval where that is wider: few seeds that differ say little of others.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """A quantity other than a score that differs between policies; each value is a mean over seeds, of base and trained."""

    label: str
    greedy: tuple[str, str] | None
    sampled: tuple[str, str] | None  # None: nothing was sampled, or samples do not have this figure


def setup(
    inputs: Inputs, comparisons: Sequence[TaskComparison], parameters: Mapping[str, Sequence[Parameter]], steps: int
) -> list[tuple[str, str]]:
    """Return the set-up at a glance; unknown facts are left out. `steps`: of training."""
    first = comparisons[0]
    is_shared = len(inputs.seeds_sampled(first.task, "base")) < len(inputs.seeds)
    shared = "; those of the base policy are the same for all seeds" if is_shared else ""
    recorded = {
        "Policy": (value_of(parameters, "model.name") or "").strip('"'),
        "Training": _training(parameters, steps),
        ("Seed" if len(inputs.seeds) == 1 else "Seeds"): ", ".join(str(seed) for seed in inputs.seeds),
        "Evaluated on": ", ".join(
            f"{comparison.label} ({wording.plural(comparison.problems, 'problem')})" for comparison in comparisons
        ),
        "Completions": f"1 greedy and {first.samples} sampled per problem{shared}",
        "Answers parsed by": f"the {inputs.summary(first.task, 'base', first.seeds[0])['extractor']} extractor",
    }
    return [(name, value) for name, value in recorded.items() if value]


def _training(parameters: Mapping[str, Sequence[Parameter]], steps: int) -> str:
    prompts = value_of(parameters, "training.prompts_per_step")
    samples = value_of(parameters, "training.samples_per_prompt")
    duration = wording.plural(steps, "step")
    return (
        duration
        if prompts is None or samples is None
        else f"{duration} of {prompts} prompts \N{MULTIPLICATION SIGN} {samples} samples"
    )


def diagnostics(inputs: Inputs, task: str) -> list[Diagnostic]:
    """Return rates and lengths of both policies, from scores.json."""
    rows = [
        (_label("truncation_rate"), ("truncation_rate",), wording.percent),
        (_label("missing_answer_rate"), ("missing_answer_rate",), wording.percent),
        (_label("unverifiable_rate"), ("unverifiable_rate",), wording.percent),
        ("Mean length, tokens", ("mean_completion_tokens",), "{:.1f}".format),
        ("Correct, strict extractor", ("accuracy_by_extractor", "strict"), wording.percent),
        ("Correct, flexible extractor", ("accuracy_by_extractor", "flexible"), wording.percent),
        ("Correct, exact extractor", ("accuracy_by_extractor", "exact"), wording.percent),
    ]
    rows_of_both = [
        Diagnostic(
            label=label,
            greedy=_both(inputs, task, (*path, "greedy"), to_text),
            sampled=_both(inputs, task, (*path, "sampled"), to_text),
        )
        for label, path, to_text in rows
    ]
    return [each for each in rows_of_both if each.greedy or each.sampled]


def _label(rate: str) -> str:
    metric = definition_of(f"eval/task/{rate}_greedy")
    assert metric is not None, f"core/metrics/evaluation.py defines {rate}"
    return metric.label


def _both(inputs: Inputs, task: str, path: Sequence[str], to_text: Callable[[float], str]) -> tuple[str, str] | None:
    """Format a figure of base and trained; None if either lacks it."""
    base, trained = (_mean(inputs, task, variant, path) for variant in VARIANTS)
    return None if base is None or trained is None else (to_text(base), to_text(trained))


def _mean(inputs: Inputs, task: str, variant: Any, path: Sequence[str]) -> float | None:
    values = []
    for seed in inputs.seeds:
        value: Any = inputs.summary(task, variant, seed)
        for part in path:
            if part not in value:
                return None  # nothing was sampled
            value = value[part]
        values.append(float(value))
    return fmean(values)


def glossary(names: Iterable[str], *, has_turns: bool) -> list[tuple[str, str]]:
    """Return label and meaning of each labelled metric among the recorded names, scores first, then terms."""
    recorded = {definition_of(name) for name in names}
    metrics = [metric for metric in METRICS if metric.label and metric in recorded]
    scores_first = sorted(metrics, key=lambda metric: metric.group != "eval")
    return [*((each.label, _meaning(each)) for each in scores_first), *([TURN] if has_turns else []), INTERVAL, DIGEST]


def _meaning(metric: Metric) -> str:
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    complement = metric.complement
    figure = f" The figure shows the complement: {complement[0].lower()}{complement[1:]}." if complement else ""
    return f"{metric.meaning}{better}{figure}"
