"""Stage prepare: a task's problems, filtered, as parquet files.

Writes data/<experiment>/<task>/{train,validation,test}.parquet, the dropped rows, passages for a search tool, and a card. The filters are
in filters/, one file each; this module orders them.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from dagrpo.core.errors import UserError, place_of_code
from dagrpo.core.section import Section
from dagrpo.core.types import Row
from dagrpo.data.card import Card
from dagrpo.data.config import Data
from dagrpo.data.filters.contamination import Overlaps, check_contamination
from dagrpo.data.filters.pass_rates import add_pass_rates, drop_by_pass_rate
from dagrpo.data.filters.prompt_length import (
    DEFAULTS,
    LONG,
    TEMPLATE,
    count_prompt_tokens,
    drop_long_prompts,
    prompt_tokens,
    require_short_prompts,
    require_tools_shown,
)
from dagrpo.data.filters.questions import drop_conflicting, drop_repeated, drop_unreadable, hold_out
from dagrpo.data.filters.sieve import Sieve, dropped_table
from dagrpo.data.schema import to_table
from dagrpo.data.source import SPLITS, VALIDATION
from dagrpo.data.task import Task, TaskRows, get_task
from dagrpo.models.pictures import processor_of, takes_pictures
from dagrpo.tools.retrieval import Passage
from dagrpo.utils.files import atomic_folder, write_json
from dagrpo.utils.tables import write_parquet

GROUP_BYTES = 64 << 20  # of a row group: a reader holds one at a time
CARD = "card.json"
DROPPED = "dropped.parquet"
PASSAGES = "passages.parquet"
SCHEMA = pa.schema([pa.field("title", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)])


def prepare(
    task: str,
    folder: Path,
    params: Data,
    *,
    model: Path,
    evaluate: Sequence[str],
    train: Sequence[str] = (),
    tools: Mapping[str, Section] = DEFAULTS,
    chat: str = TEMPLATE,
    longest: int | None = None,
) -> Card:
    """Write `folder`, completely or not at all.

    model: the folder of the checkpoint whose tokenizer counts prompt tokens. evaluate: the tasks whose test and validation splits the
    train problems are compared with. train: the tasks that the experiment trains on, whose problems data.pass_rates must know; (): this
    one. tools: the parameters of tools, by name. chat: the name of the chat format. longest: training.max_prompt_tokens. Raises
    UserError if the task is unknown, its raw data is at fault, a prompt to train on is longer, or if it is to be attempted and the model
    takes no pictures or does not describe its tools.
    """
    if task in (*train, *evaluate):
        require_model_for(get_task(task), model)
    task_rows: object = get_task(task).load(params)
    if not isinstance(task_rows, TaskRows):
        place = place_of_code(get_task(task).load)
        raise UserError(f"task {task}: `load` ({place}) returned {repr(task_rows)[:60]}, not TaskRows: correct it.")
    require_tools_of_task(get_task(task), task_rows)
    others = [name for name in evaluate if name != task] if task_rows.splits["train"] else []
    trained = not train or task in train
    validated = [name for name in others if trained and params.has_validation(name)]
    tests = {name: _test_split(name, params) for name in (evaluate if validated else others)}
    card, sieve = sift(
        task,
        task_rows,
        params,
        model=model,
        tests=tests,
        validations={name: _validation_split(name, params, tests) for name in validated},
        evaluated=task in evaluate,
        rated=trained,
        tools=tools,
    )
    _require_some_left(task_rows, card)
    if task in train and chat == TEMPLATE and longest is not None:  # another chat format may render fewer tokens
        require_short_prompts(sieve.splits["train"], longest)
    if task in (*train, *evaluate) and card.prompt_tokens.tools_shown is False:
        require_tools_shown(sieve.rows(), model, chat)
    with atomic_folder(folder) as temporary:
        for split in (*SPLITS, VALIDATION):
            write_parquet(temporary / f"{split}.parquet", to_table(sieve.splits.get(split, ())), GROUP_BYTES)
        write_parquet(temporary / DROPPED, dropped_table(sieve.dropped))
        write_parquet(temporary / PASSAGES, passages_table(task_rows.passages))
        write_json(temporary / CARD, asdict(card))
    return card


def require_model_for(task: Task, model: Path) -> None:
    """Raise UserError if the task's prompts have pictures, and the model takes none, or is of an unknown family."""
    if task.images and processor_of(model) is None:
        raise UserError(
            f"{task.name} has prompts with pictures, and the model in {model} takes text alone: choose a vision-language model in "
            "section model, or another task."
        )


def require_tools_of_task(task: Task, task_rows: TaskRows) -> None:
    """Raise UserError for the first row with other tools, or another simulated user, than its task, or a broken demonstration."""
    for row in (row for rows in task_rows.splits.values() for row in rows):
        _require_turns(task, row)
        for field, own, declared in (
            ("tools", sorted(row.tools), sorted(task.tools)),
            ("interaction", row.interaction, task.interaction),
        ):
            if own != declared:
                raise UserError(
                    f"task {task.name}, {row.split} row {row.index}, field `{field}` is {own!r}, and the Task has {declared!r}, which "
                    f"decides the code that runs and whether a score has an oracle: give both the same `{field}`."
                )


def _require_turns(task: Task, row: Row) -> None:
    """Check that the policy has a demonstration's first and last message, and an answer between any two. Raises UserError."""
    roles = [message.get("role") for message in row.demonstration]
    twice = any(one == other == "assistant" for one, other in itertools.pairwise(roles))
    if roles and ({roles[0], roles[-1]} != {"assistant"} or twice or not {*roles} <= {"assistant", "tool", "user"}):
        raise UserError(
            f"task {task.name}, {row.split} row {row.index}, field `demonstration` has the roles {', '.join(map(str, roles))}: it must "
            "begin and end with an assistant's message, and have an answer of a tool or user between two of them."
        )


def _require_some_left(task_rows: TaskRows, card: Card) -> None:
    """Raise UserError if no problem remains of a split that had some: no later stage could use it."""
    for split in ("train", "test"):
        had = bool(task_rows.splits.get(split)) or (split == "test" and task_rows.held_out)
        if had and not card.counts[split]:
            reasons = {key.partition(": ")[2]: count for key, count in card.dropped.items() if key.startswith(split)}
            losses = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
            pictured = reasons.get(LONG) and card.prompt_tokens.images_counted and get_task(card.task).images
            smaller = "lower model.max_pixels so that pictures take fewer tokens, or " if pictured else ""
            raise UserError(
                f"task {card.task}: no {split} problem is left ({losses}): {smaller}change the parameters of `data` that drop them, "
                "or the data."
            )


def sift(
    task: str,
    task_rows: TaskRows,
    params: Data,
    *,
    model: Path,
    tests: Mapping[str, Sequence[Row]],
    validations: Mapping[str, Sequence[Row]] | None = None,
    evaluated: bool = False,
    rated: bool = True,
    tools: Mapping[str, Section] = DEFAULTS,
) -> tuple[Card, Sieve]:
    """Apply every filter in order; return the card and the remaining problems.

    tests, validations: these splits of other tasks. evaluated: whether the task is in experiment.evaluate, and so may need validation
    rows. rated: whether data.pass_rates must know some of the problems.
    """
    sieve, conflicting, overlaps = _with_validation(task, task_rows, params, tests, evaluated=evaluated)
    own = {task: sieve.splits[VALIDATION]} if evaluated and sieve.splits.get(VALIDATION) else {}
    apart = (own if params.held_out_validation else {}) | dict(validations or {})
    check_contamination(sieve, apart, params.contamination_words, "drop", against=VALIDATION)
    tools_shown = count_prompt_tokens(sieve, model, tools)
    drop_long_prompts(sieve, params.max_prompt_tokens)
    rates = None if params.pass_rates is None else add_pass_rates(sieve, Path(params.pass_rates), must_match=rated)
    drop_by_pass_rate(sieve, params.min_pass_rate, params.max_pass_rate)
    beyond = _cut(sieve, params)
    splits = sieve.splits
    card = Card(
        task=task,
        source=task_rows.source,
        origin=task_rows.origin,
        revision=task_rows.revision,
        raw=dict(task_rows.files),
        expected=dict(task_rows.expected),
        read=dict(task_rows.read),
        exact_copies={
            split: task_rows.read.get(split, len(rows)) - len(rows) for split, rows in task_rows.splits.items()
        },
        held_out=params.held_out if task_rows.held_out else 0,
        dropped={**sieve.counts, **beyond},
        conflicting_questions=conflicting,
        contamination=overlaps.report(splits["train"]),
        prompt_tokens=prompt_tokens(splits, tools_shown=tools_shown, images_counted=takes_pictures(model)),
        pass_rates=rates,
        limits={"max_train": params.max_train, "max_test": params.max_test},
        counts={split: len(rows) for split, rows in splits.items()},
        levels={
            level: {split: sum(row.ability == level for row in rows) for split, rows in splits.items()}
            for level in task_rows.levels
        },
        passages=len(task_rows.passages),
        untested=task_rows.untested,
    )
    return card, sieve


def _test_split(task: str, params: Data) -> Sequence[Row]:
    """Return the test problems of another task, held out from train as the task's own prepare does."""
    task_rows = (get_task(task).load_tests or get_task(task).load)(params)
    if not task_rows.held_out:
        return task_rows.splits.get("test", ())
    return _without_faults(task_rows, params)[0].splits["test"]


def _validation_split(task: str, params: Data, tests: Mapping[str, Sequence[Row]]) -> Sequence[Row]:
    """Return the validation problems of another evaluated task, as the task's own prepare does. `tests`: of all evaluated tasks."""
    sieve, *_ = _with_validation(task, get_task(task).load(params), params, tests, evaluated=True)
    return sieve.splits.get(VALIDATION, ())


def _with_validation(
    task: str, task_rows: TaskRows, params: Data, tests: Mapping[str, Sequence[Row]], *, evaluated: bool
) -> tuple[Sieve, dict[str, int], Overlaps]:
    """Return the problems without faults and contamination, the number of conflicting questions, and what train and test share.

    An evaluated task without validation rows has some of the train problems, of those that share nothing with a test problem.
    """
    sieve, conflicting = _without_faults(task_rows, params)
    compared = {task: (), **tests} | {task: sieve.splits["test"]}
    overlaps = check_contamination(sieve, compared, params.contamination_words, params.contamination)
    if evaluated and params.held_out_validation and sieve.splits["train"] and not sieve.splits.get(VALIDATION):
        near = frozenset().union(*overlaps.by_task.values())
        hold_out(sieve, VALIDATION, params.held_out_validation, "held_out_validation", near)
    return sieve, conflicting, overlaps


def _without_faults(task_rows: TaskRows, params: Data) -> tuple[Sieve, dict[str, int]]:
    """Return the problems with one readable answer each, every question once, and the number of conflicting questions.

    A source without a test split has one of held-out problems.
    """
    sieve = Sieve(task_rows.splits)
    drop_unreadable(sieve, params.unreadable_answers)
    conflicting = drop_conflicting(sieve)
    drop_repeated(sieve)
    if task_rows.held_out:
        hold_out(sieve, "test", params.held_out, "held_out")
    return sieve, conflicting


def _cut(sieve: Sieve, params: Data) -> dict[str, int]:
    """Keep the first problems up to the limits; return how many are dropped."""
    beyond = {}
    for split, limit in (("train", params.max_train), ("test", params.max_test)):
        rows = sieve.splits[split]
        sieve.splits[split] = rows[:limit]
        beyond[f"{split}: beyond data.max_{split}"] = len(rows) - len(sieve.splits[split])
    return beyond


def passages_table(passages: Sequence[Passage]) -> pa.Table:
    """Return passages as the rows of passages.parquet, in their order."""
    return pa.Table.from_pylist([asdict(passage) for passage in passages], schema=SCHEMA)
