"""The report's page: one HTML file that needs no other.

It runs one script, dagrpo's, which filters the tables; the page's Content-Security-Policy allows only the script's digest.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from dagrpo.core.escape import visible
from dagrpo.evaluation.choice import sentence
from dagrpo.evaluation.scoring import metrics_to_log
from dagrpo.report import format as wording
from dagrpo.report.breakdowns import SMALL, Breakdown
from dagrpo.report.comparison import TaskComparison, compare_scorers
from dagrpo.report.conversations import Conversations
from dagrpo.report.curves import Curves
from dagrpo.report.examples import TaskExamples
from dagrpo.report.figures.parts import ReportFigure
from dagrpo.report.figures.policies import PolicyScores
from dagrpo.report.html import render_html
from dagrpo.report.inputs import Inputs
from dagrpo.report.over_steps import MOST_ATTEMPTS, SeriesView
from dagrpo.report.parameters import Parameter, changed, value_of
from dagrpo.report.samples import MOST_STEPS
from dagrpo.report.tables import diagnostics, glossary, setup
from dagrpo.utils.provenance import File, LineageRow

SCRIPT = "page.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The computed content of the page."""

    inputs: Inputs
    comparisons: Sequence[TaskComparison]
    chosen: Sequence[TaskComparison]  # of the base policy with the chosen one, by task; []: none was chosen
    policy_scores: Sequence[PolicyScores]  # []: base and trained alone were evaluated
    curves: Curves
    figures: Sequence[ReportFigure]
    examples: Mapping[str, TaskExamples]  # by task
    conversations: Conversations | None  # None: every attempt is a single turn without a call
    breakdowns: Mapping[str, Breakdown]  # by task
    over_steps: Sequence[SeriesView]
    left_out: str | None  # sentence about texts that runtime.keep_rollouts left out of the rollouts
    training_figures: Sequence[ReportFigure]  # only on the page: not every experiment has them
    conversation_figures: Sequence[ReportFigure]  # likewise
    lineage: Sequence[LineageRow]
    parameters: Mapping[str, Sequence[Parameter]]  # by section
    overrides: Mapping[str, Any]  # of an override run, by dotted key; else empty
    software: Sequence[tuple[str, str]] = ()  # names and versions
    doubts: Sequence[str] = ()  # warnings about the results


def render(page: Page) -> str:
    """Render the whole HTML text."""
    script = Path(__file__).with_name(SCRIPT).read_text()
    moments = [moment for series in page.over_steps for moment in series.moments]
    return render_html(
        Path(__file__).with_name("template.html.j2"),
        page=page,
        words=wording,
        figures={each.name: each for each in (*page.figures, *page.training_figures, *page.conversation_figures)},
        training_figures=[each.name for each in page.training_figures],
        conversation_figures=[each.name for each in page.conversation_figures],
        diagnostics={comparison.task: diagnostics(page.inputs, comparison.task) for comparison in page.comparisons},
        choices={seed: sentence(choice) for seed, choice in page.inputs.choices.items()},
        facts=setup(page.inputs, page.comparisons, page.parameters, len(page.curves.steps)),
        scorers={each.task: rows for each in page.comparisons if (rows := compare_scorers(page.inputs, each.task))},
        is_control=value_of(page.parameters, "reward.permuted") == "true",
        rows={File(row.output, row.digest): number for number, row in enumerate(page.lineage, start=1)},
        glossary=glossary(_metrics_of(page), has_turns=page.conversations is not None),
        script=Markup(script),
        script_digest=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",  # as in a Content-Security-Policy
        changed=changed(page.parameters),
        software=page.software,
        made_here=f"../../../logs/{quote(visible(page.inputs.experiment))}/times.html",
        by_kind={task: each.by_kind for task, each in page.breakdowns.items() if each.by_kind},
        by_base={task: each.by_base for task, each in page.breakdowns.items() if each.by_base},
        least_of_group=SMALL,
        steps_shown=sorted({moment.step for moment in moments}),
        kinds_shown=sorted({series.kind for series in page.over_steps if series.kind is not None}),
        verdicts_shown=sorted({each.attempt.verdict for moment in moments for each in moment.attempts}),
        most_steps=MOST_STEPS,
        most_attempts=MOST_ATTEMPTS,
    )


def _metrics_of(page: Page) -> list[str]:
    scores = [
        f"eval/{task}/{name}"
        for task in page.inputs.tasks
        for name in metrics_to_log(page.inputs.summary(task, "base", page.inputs.seeds[0]))
    ]
    differences = [f"eval/{each.task}/{metric.name}_difference" for each in page.comparisons for metric in each.metrics]
    has_held_out = any(each.name == "held_out_accuracy" for each in page.training_figures)
    held_out = [f"held_out/{task}/greedy" for task in page.inputs.tasks] if has_held_out else []
    return [*scores, *differences, *page.curves.values, *held_out]
