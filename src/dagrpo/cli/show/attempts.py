"""Attempts of a file, and the choice among them."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.cli.show.command import Place
from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief
from dagrpo.pipeline.declaration import rated_splits
from dagrpo.report.attempt import LONGEST_TEXT, Attempt, attempt_of
from dagrpo.report.samples import best_and_worst
from dagrpo.rollout.attempts_file import ROW, AttemptsFile
from dagrpo.rollout.table import sighted, with_texts, without_discarded
from dagrpo.utils.files import read_object
from dagrpo.utils.provenance import PROVENANCE
from dagrpo.utils.tables import read_parquet

NEEDED = (
    *("task", "problem_index", "sample_index", "prompt", "completion", "prompt_ids", "completion_ids"),
    *("finish_reason", "ground_truth", "question"),
)
GRADED = ("extracted", "verdict", "correct")
IMAGES = "images"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chosen attempts of a file."""

    attempts: int  # in the file
    left_out: int  # of them, those without texts and tokens
    step: int | None  # of training
    mean: float | None  # reward, or share of correct answers; None: not graded
    means: tuple[tuple[str, float], ...]  # of each task, if there are several
    titled: tuple[tuple[str, Attempt], ...]  # "best 1 of 3" and the like


def choose(place: Place, best: int, worst: int, prompt: str | None = None, *, full: bool = False) -> Chosen:
    """Choose the best and the worst attempts of a file, their texts whole with `full`.

    `prompt`: only of prompts that contain this text, ignoring case. Raises UserError if the file is not a rollout table, or
    no prompt contains the text.
    """
    file = AttemptsFile(place.attempts)
    table = _read(file, place)
    if prompt is not None:
        table = _with_prompt(table, prompt, place)
    shown = with_texts(table)
    left_out = table.num_rows - shown.num_rows
    shown = shown if shown.num_rows else table
    highest, lowest = best_and_worst(shown, best, worst)
    worth = next((name for name in ("reward", "correct") if name in table.column_names), None)
    worths = table[worth].to_pylist() if worth else []
    graded = [float(value) for value in worths if value is not None]
    of_tasks: dict[str, list[float]] = {}
    for task, value in zip(table["task"].to_pylist() if worth else [], worths, strict=True):
        of_tasks.setdefault(task, []).extend([] if value is None else [float(value)])
    kinds = (("best", highest), ("worst", lowest)) if graded else (("attempt", highest + lowest),)
    titles = [f"{kind} {number} of {len(rows)}" for kind, rows in kinds for number in range(1, len(rows) + 1)]
    grades = shown.select([name for name in GRADED if name in shown.column_names]).to_pylist()
    rows = file.rows_of(shown, [*highest, *lowest])
    whole = [row | grades[position] for row, position in zip(rows, [*highest, *lowest], strict=True)]
    attempts = [attempt_of(row, None if full else LONGEST_TEXT) for row in whole]
    return Chosen(
        left_out=left_out,
        attempts=table.num_rows,
        step=table["step"][0].as_py() if "step" in table.column_names else None,
        mean=fmean(graded) if graded else None,
        means=tuple((task, fmean(own)) for task, own in of_tasks.items() if own and len(of_tasks) > 1),
        titled=tuple(zip(titles, attempts, strict=True)),
    )


def _read(file: AttemptsFile, place: Place) -> pa.Table:
    """Return the short columns and grades, without the attempts that a step of training discarded."""
    table = file.short
    if "discarded" in table.column_names:
        table = without_discarded(table)
    missing = [name for name in NEEDED if name not in file.columns]
    if missing or table.num_rows == 0:
        raise UserError(
            f"{place.attempts} is no table of attempts: {f'no column `{missing[0]}`' if missing else 'no rows'}. Name a file "
            "that the stage train or sample has written."
        )
    table = sighted(table)
    scores = read_parquet(place.scores).select(GRADED) if place.scores else None
    if scores is None:
        return table
    if scores.num_rows != table.num_rows:
        raise UserError(f"{place.scores} is not of {place.attempts}: run the stage score again.")
    for name in GRADED:
        table = table.append_column(name, scores.column(name))
    return table


def _with_prompt(table: pa.Table, text: str, place: Place) -> pa.Table:
    """Return the rows whose prompt or question contains a text; spaces count as one."""
    pattern = _plain(text)
    prompts = read_parquet(place.attempts, columns=["prompt"])["prompt"].take(table[ROW]).to_pylist()
    texts = zip(prompts, table["question"].to_pylist(), strict=True)
    matches = [number for number, own in enumerate(texts) if any(pattern in _plain(text or "") for text in own)]
    if not matches:
        raise UserError(
            f"No prompt of {place.attempts} has the text {brief(text)}: take a shorter piece of it, or name another --step or --task."
        )
    return table.take(matches)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def pictures(place: Place, task: str, problem: int) -> str | None:
    """Return a problem's number of pictures, and their file and row; None without pictures, or if its split is missing."""
    for split in _splits(place, task):
        counts = _counts(split)
        if 0 <= problem < len(counts):
            shown = (
                split if split.is_absolute() and place.run and place.run.is_absolute() else Path(os.path.relpath(split))
            )
            where = f"in column {IMAGES} of {shown}, row {problem} (from 0)"
            return f"{counts[problem]}, {where}" if counts[problem] else None
        problem -= len(counts)
    return None


def _splits(place: Place, task: str) -> list[Path]:
    """List the splits over which the attempts' problem indices count, without those that are missing."""
    if place.run is None:
        return []
    run = place.run.absolute()  # a relative path may have too few parents
    if run.parent.name != "runs" or len(run.parents) < 4:
        return []
    results, record = run.parents[1], run / "policy" / PROVENANCE
    splits = [results.parents[1] / "data" / results.name / task / "test.parquet"]
    if place.attempts.name != "completions.parquet":
        splits = sorted(results.glob("difficulty/*/train.parquet"))
        if len(splits) > 1:  # of a mixture, whose order is on record once it is trained
            train = read_object(record)["params"]["experiment"]["train"] if record.is_file() else ()
            splits = list(rated_splits(train, results).values())
    return splits if all(split.is_file() for split in splits) else []


@lru_cache(maxsize=8)
def _counts(split: Path) -> tuple[int, ...]:
    """Count the pictures of every row. Raises UserError if the file is damaged."""
    table = read_parquet(split, columns=[IMAGES])
    return tuple(pc.list_value_length(table[IMAGES]).to_pylist()) if IMAGES in table.column_names else ()
