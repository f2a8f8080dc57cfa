"""The report's page: one HTML file that needs no other.

It runs one script, dagrpo's, which filters the tables; the page's Content-Security-Policy allows only the script's digest.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dagrpo.core.escape import visible
from dagrpo.core.metrics import definition_of
from dagrpo.evaluation.scoring import metrics_to_log
from dagrpo.report import format as wording
from dagrpo.report.breakdowns import SMALL, Breakdown
from dagrpo.report.comparison import TaskComparison
from dagrpo.report.conversations import Conversations
from dagrpo.report.curves import Curves
from dagrpo.report.examples import TaskExamples
from dagrpo.report.figures import Drawn
from dagrpo.report.glossary import glossary
from dagrpo.report.inline_svg import inline
from dagrpo.report.inputs import VARIANTS, Inputs
from dagrpo.report.over_steps import MOST_ATTEMPTS, SeriesView
from dagrpo.report.parameters import Parameter, changed, value_of
from dagrpo.report.samples import MOST_STEPS
from dagrpo.utils.provenance import File, LineageRow

TEMPLATE = "template.html.j2"
SCRIPT = "page.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The computed content of the page."""

    inputs: Inputs
    comparisons: Sequence[TaskComparison]
    curves: Curves
    figures: Sequence[Drawn]
    examples: Mapping[str, TaskExamples]  # by task
    conversations: Conversations | None  # None: every attempt is a single turn without a call
    breakdowns: Mapping[str, Breakdown]  # by task
    over_steps: Sequence[SeriesView]
    conversation_figures: Sequence[Drawn]  # on the page alone: not every experiment has them
    held_out_figures: Sequence[Drawn]  # likewise
    lineage: Sequence[LineageRow]
    parameters: Mapping[str, Sequence[Parameter]]  # by section
    overrides: Mapping[str, Any]  # of an override run, by dotted key; else empty
    software: Sequence[tuple[str, str]] = ()  # names and versions
    doubts: Sequence[str] = ()  # warnings about the results


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """A quantity other than a score that differs between policies; each value is a mean over seeds, of base and trained."""

    label: str
    greedy: tuple[str, str] | None
    sampled: tuple[str, str] | None  # None: nothing was sampled, or samples do not have this figure


def render(page: Page) -> str:
    """Render the whole HTML text. The template escapes every value, model output first of all, except figures.

    Control and bidi characters are made visible everywhere: title, parameters and file names are user input too.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template(TEMPLATE)
    html = template.render(
        page=page,
        words=wording,
        figures={
            drawn.name: _Figure(drawn) for drawn in (*page.figures, *page.held_out_figures, *page.conversation_figures)
        },
        held_out_figures=[drawn.name for drawn in page.held_out_figures],
        conversation_figures=[drawn.name for drawn in page.conversation_figures],
        diagnostics={comparison.task: diagnostics(page.inputs, comparison.task) for comparison in page.comparisons},
        facts=facts(page),
        is_control=value_of(page.parameters, "reward.permuted") == "true",
        rows={File(row.output, row.digest): number for number, row in enumerate(page.lineage, start=1)},
        glossary=_glossary(page),
        script=_script(),
        changed=changed(page.parameters),
        software=page.software,
        made_here=f"../../../logs/{quote(visible(page.inputs.experiment))}/times.html",
        **_of_groups(page),
        **_of_attempts(page),
    )
    return visible(html)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    """The page's script, and its digest in the page's policy."""

    text: Markup
    digest: str  # as in a Content-Security-Policy


def _script() -> _Script:
    text = Path(__file__).with_name(SCRIPT).read_text()
    return _Script(text=Markup(text), digest=f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}")


def _of_groups(page: Page) -> dict[str, Any]:
    """Return the template's variables for the tables of groups, of each task that has any."""
    return {
        "by_kind": {task: each.by_kind for task, each in page.breakdowns.items() if each.by_kind},
        "by_base": {task: each.by_base for task, each in page.breakdowns.items() if each.by_base},
        "least_of_group": SMALL,
    }


def _of_attempts(page: Page) -> dict[str, Any]:
    """Return the template's variables for training attempts: their filters, and the rule by which they were chosen."""
    moments = [moment for series in page.over_steps for moment in series.moments]
    verdicts = {each.attempt.verdict for moment in moments for each in moment.attempts}
    return {
        "steps_shown": sorted({moment.step for moment in moments}),
        "kinds_shown": sorted({series.kind for series in page.over_steps if series.kind is not None}),
        "verdicts_shown": sorted(verdicts),
        "most_steps": MOST_STEPS,
        "most_attempts": MOST_ATTEMPTS,
    }


def _glossary(page: Page) -> Sequence[tuple[str, str]]:
    """Explain the metrics that the page shows: scores and their differences, training curves, held-out accuracy."""
    scores = [
        f"eval/{task}/{name}"
        for task in page.inputs.tasks
        for name in metrics_to_log(page.inputs.summary(task, "base", page.inputs.seeds[0]))
    ]
    differences = [
        f"eval/{each.task}/{metric.metric}_difference" for each in page.comparisons for metric in each.metrics
    ]
    held_out = [f"held_out/{task}/greedy" for task in page.inputs.tasks] if page.held_out_figures else []
    names = (*scores, *differences, *page.curves.values, *held_out)
    return glossary(names, has_turns=page.conversations is not None)


class _Figure:
    """A drawn figure as the template needs it."""

    def __init__(self, drawn: Drawn) -> None:
        self.title = drawn.title
        self.caption = drawn.caption
        svg = drawn.svg(transparent=True)
        self.svg = Markup(
            inline(svg, drawn.name, drawn.title, drawn.description)
        )  # drawn by dagrpo; its words are escaped there


def facts(page: Page) -> list[tuple[str, str]]:
    """Return the set-up at a glance."""
    first = page.comparisons[0]
    recorded = {
        "Policy": _text(value_of(page.parameters, "model.name")),
        "Training": _training(page),
        ("Seed" if len(page.inputs.seeds) == 1 else "Seeds"): ", ".join(str(seed) for seed in page.inputs.seeds),
        "Evaluated on": ", ".join(
            f"{comparison.label} ({wording.plural(comparison.problems, 'problem')})" for comparison in page.comparisons
        ),
        "Completions": f"1 greedy and {first.samples} sampled per problem",
        "Answers read by": f"the {page.inputs.summary(first.task, 'base', first.seeds[0])['extractor']} extractor",
    }
    return [(name, value) for name, value in recorded.items() if value]


def _text(value: str | None) -> str:
    return "" if value is None else value.strip('"')


def _training(page: Page) -> str:
    prompts = value_of(page.parameters, "training.prompts_per_step")
    samples = value_of(page.parameters, "training.samples_per_prompt")
    steps = wording.plural(len(page.curves.steps), "step")
    return (
        steps
        if prompts is None or samples is None
        else f"{steps} of {prompts} prompts \N{MULTIPLICATION SIGN} {samples} samples"
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
    found = [
        Diagnostic(
            label=label,
            greedy=_both(inputs, task, (*path, "greedy"), shown),
            sampled=_both(inputs, task, (*path, "sampled"), shown),
        )
        for label, path, shown in rows
    ]
    return [each for each in found if each.greedy or each.sampled]


def _label(rate: str) -> str:
    metric = definition_of(f"eval/task/{rate}_greedy")
    assert metric is not None, f"core/metrics/evaluation.py defines {rate}"
    return metric.label


def _both(inputs: Inputs, task: str, path: Sequence[str], shown: Callable[[float], str]) -> tuple[str, str] | None:
    """Format a figure of base and trained; None if either lacks it."""
    base, trained = (_mean(inputs, task, variant, path) for variant in VARIANTS)
    return None if base is None or trained is None else (shown(base), shown(trained))


def _mean(inputs: Inputs, task: str, variant: Any, path: Sequence[str]) -> float | None:
    values = []
    for seed in inputs.seeds:
        value: Any = inputs.summary(task, variant, seed)
        for part in path:
            if part not in value:
                return None  # nothing was sampled
            value = value[part]
        values.append(float(value))
    return sum(values) / len(values)
