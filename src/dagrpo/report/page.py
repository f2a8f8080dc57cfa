"""The report's page: everything above put into one HTML file that needs no other and runs no script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dagrpo.evaluation.outcomes import WITHOUT_PICTURES
from dagrpo.provenance.records import File, LineageRow
from dagrpo.report import wording
from dagrpo.report.comparison import TaskComparison
from dagrpo.report.conversations import Conversations
from dagrpo.report.curves import Curves
from dagrpo.report.examples import TaskExamples
from dagrpo.report.figures import Drawn
from dagrpo.report.glossary import GLOSSARY, OF_CONVERSATIONS, OF_PICTURES
from dagrpo.report.inline_svg import inline
from dagrpo.report.inputs import VARIANTS, Inputs
from dagrpo.report.parameters import Parameter, value_of
from dagrpo.report.style import to_svg
from dagrpo.visible import visible

TEMPLATE = "template.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the page shows, computed."""

    inputs: Inputs
    comparisons: Sequence[TaskComparison]
    curves: Curves
    figures: Sequence[Drawn]
    examples: Mapping[str, TaskExamples]  # by task
    conversations: Conversations | None  # None: every attempt is a single turn without a call
    conversation_figures: Sequence[Drawn]  # on the page alone: not every experiment has them
    lineage: Sequence[LineageRow]
    parameters: Mapping[str, Sequence[Parameter]]  # by section
    overrides: Mapping[str, Any]  # of a try: parameters that params.yaml does not hold, by dotted key; else empty
    doubts: Sequence[str] = ()  # sentences on what makes the results doubtful


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """Something other than a score that two policies differ in; each value is a mean over seeds."""

    label: str
    base: str
    trained: str


def render(page: Page) -> str:
    """The whole HTML text. Every value is escaped by the template, model output first of all; only figures are not.

    Nothing on it hides or reorders: the title, the parameters and the names of files are not our own words.
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
        figures={drawn.name: _Figure(drawn) for drawn in (*page.figures, *page.conversation_figures)},
        conversation_figures=[drawn.name for drawn in page.conversation_figures],
        diagnostics={comparison.task: diagnostics(page.inputs, comparison.task) for comparison in page.comparisons},
        facts=facts(page),
        is_control=value_of(page.parameters, "reward.permuted") == "true",
        rows={File(row.output, row.digest): number for number, row in enumerate(page.lineage, start=1)},
        glossary=_glossary(page),
    )
    return visible(html)


def _glossary(page: Page) -> Sequence[tuple[str, str]]:
    measured = {metric.metric for comparison in page.comparisons for metric in comparison.metrics}
    of_pictures = OF_PICTURES if WITHOUT_PICTURES in measured else ()
    return GLOSSARY + of_pictures + (OF_CONVERSATIONS if page.conversations else ())


class _Figure:
    """A drawn figure as the template needs it."""

    def __init__(self, drawn: Drawn) -> None:
        self.title = drawn.title
        self.caption = drawn.caption
        svg = to_svg(drawn.figure, drawn.name, transparent=True)
        self.svg = Markup(
            inline(svg, drawn.name, drawn.title, drawn.description)
        )  # our own drawing; its words are escaped there


def facts(page: Page) -> list[tuple[str, str]]:
    """The set-up at a glance."""
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
    """Rates and lengths of both policies, from scores.json."""
    rows = [
        ("Cut at the limit, greedy", ("truncation_rate", "greedy"), wording.percent),
        ("Cut at the limit, sampled", ("truncation_rate", "sampled"), wording.percent),
        ("No answer read, greedy", ("missing_answer_rate", "greedy"), wording.percent),
        ("No answer read, sampled", ("missing_answer_rate", "sampled"), wording.percent),
        ("Not verifiable in time, greedy", ("unverifiable_rate", "greedy"), wording.percent),
        ("Not verifiable in time, sampled", ("unverifiable_rate", "sampled"), wording.percent),
        ("Mean length, greedy, tokens", ("mean_completion_tokens", "greedy"), "{:.1f}".format),
        ("Mean length, sampled, tokens", ("mean_completion_tokens", "sampled"), "{:.1f}".format),
        ("Greedy accuracy, strict extractor", ("accuracy_by_extractor", "strict", "greedy"), wording.percent),
        ("Greedy accuracy, flexible extractor", ("accuracy_by_extractor", "flexible", "greedy"), wording.percent),
        ("Greedy accuracy, exact extractor", ("accuracy_by_extractor", "exact", "greedy"), wording.percent),
    ]
    diagnostics = []
    for label, path, shown in rows:
        means = [_mean(inputs, task, variant, path) for variant in VARIANTS]
        if None not in means:
            base, trained = (shown(mean) for mean in means if mean is not None)
            diagnostics.append(Diagnostic(label=label, base=base, trained=trained))
    return diagnostics


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
