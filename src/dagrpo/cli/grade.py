"""Command `dagrpo grade`: answers by extractor; it writes nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table
from rich.text import Text

from dagrpo.cli.shared import PARAMS, complete_tasks
from dagrpo.config.schema import read_params
from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.types import Score
from dagrpo.data.task import get_task
from dagrpo.evaluation.config import Scoring
from dagrpo.rewards.verifiers import get_verifier
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import read_text
from dagrpo_answers.verifier import Extractor, Verdict

DEFAULTS = Scoring()
EXTRACTORS: tuple[Extractor, ...] = get_args(Extractor)
FIELDS = ("completion", "ground_truth")
LONGEST = 60  # characters of an answer
STYLES: dict[Verdict, str] = {"right": "green", "wrong": "red", "missing": "dim", "unverifiable": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the file: a JSON object with the fields `completion` and `ground_truth`."""

    number: int  # from 1
    completion: str
    ground_truth: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One line with the score of every extractor."""

    line: Line
    scores: tuple[Score, ...]  # in the order of EXTRACTORS

    @property
    def disagrees(self) -> bool:
        return len({score.verdict for score in self.scores}) > 1


def read_lines(path: Path) -> list[Line]:
    """Read the completions of a JSONL file. Raises UserError, which names the line and the field that is missing or not a text."""
    remedy = f"give a JSONL file with the fields {' and '.join(FIELDS)} on each line"
    texts = read_text(path, remedy).split("\n")
    lines = [_line(path, number, text) for number, text in enumerate(texts, start=1) if text.strip()]
    if not lines:
        raise UserError(f"{path} is empty: {remedy}.")
    return lines


def _line(path: Path, number: int, text: str) -> Line:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or a number of over 4,300 digits
        raise UserError(f"{path}, line {number} is not valid JSON ({error}): correct the file.") from None
    for field in FIELDS:
        if not isinstance(values, dict) or not isinstance(values.get(field), str):
            raise UserError(f"{path}, line {number} has no text `{field}`: correct the file.")
    return Line(number=number, completion=values["completion"], ground_truth=values["ground_truth"])


def grade_lines(lines: Sequence[Line], verifier: str, path: Path, limits: Scoring = DEFAULTS) -> list[Graded]:
    """Extract and judge every line with every extractor. Raises UserError, which names a line with an invalid ground truth."""
    from dagrpo.rewards.grading import Grader

    for line in lines:
        try:
            get_verifier(verifier).check(line.ground_truth)
        except UserError as error:
            raise UserError(f"{path}, line {line.number}, field `ground_truth`: {error}") from None
    texts, truths = [line.completion for line in lines], [line.ground_truth for line in lines]
    with Grader(limits.verify_seconds, unit_tests=limits.unit_tests) as grader:
        columns = [grader.judge(texts, truths, [verifier] * len(lines), extractor) for extractor in EXTRACTORS]
    return [Graded(line=line, scores=scores) for line, scores in zip(lines, zip(*columns, strict=True), strict=True)]


def grade(
    task: Annotated[
        str, typer.Argument(help="task whose verifier to use, such as gsm8k", autocompletion=complete_tasks)
    ],
    completions: Annotated[Path, typer.Argument(help="JSONL with the fields completion and ground_truth")],
) -> None:
    """Print the answer that each extractor finds in every completion, and where they disagree."""
    verifier = get_task(task).verifier
    limits = read_params(PARAMS).evaluation.scoring if PARAMS.exists() else DEFAULTS
    graded = grade_lines(read_lines(completions), verifier, completions, limits)
    console = plain_console()
    console.print(_answers(graded, f"{completions.name}, read by the verifier {verifier} of {task}"), soft_wrap=False)
    for position, extractor in enumerate(EXTRACTORS):
        right = sum(each.scores[position].verdict == "right" for each in graded)
        console.print(f"{extractor:>8}: {right:,} of {len(graded):,} right ({right / len(graded):.1%})")
    numbers = [str(each.line.number) for each in graded if each.disagrees]
    console.print(f"The extractors disagree on line {', '.join(numbers)}." if numbers else "The extractors agree.")


def _answers(graded: Sequence[Graded], title: str) -> Table:
    table = Table(title=title)
    for heading in ("line", "ground truth", *EXTRACTORS, ""):
        table.add_column(heading, overflow="fold")
    for each in graded:
        end = "differ" if each.disagrees else ""
        table.add_row(str(each.line.number), each.line.ground_truth, *map(_cell, each.scores), end)
    return table


def _cell(score: Score) -> Text:
    answer = "none" if score.extracted is None else one_line(score.extracted, LONGEST)
    return Text(f"{answer} ({score.verdict})", STYLES[score.verdict])
