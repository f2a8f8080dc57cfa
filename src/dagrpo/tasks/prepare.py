"""Stage prepare: a task's raw problems -> data/<task>/{train,test}.parquet and a card that says how they came about."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dagrpo.files import atomic_folder, write_json, write_parquet
from dagrpo.params.data import Data
from dagrpo.records import Example
from dagrpo.tasks.registry import get_task
from dagrpo.tasks.schema import to_table
from dagrpo.tasks.source import SPLITS
from dagrpo.tasks.task import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What stands in data/<task>/card.json."""

    task: str
    source: str
    origin: str  # "hub", "mirror" or "generator"
    revision: str | None  # commit on the hub
    raw: Mapping[str, str]  # raw file -> sha256
    expected: Mapping[str, int]  # split -> problems of the whole source
    read: Mapping[str, int]  # split -> problems read
    dropped: Mapping[str, int]  # reason -> problems
    limits: Mapping[str, int | None]
    counts: Mapping[str, int]  # split -> problems written
    levels: Mapping[str, Mapping[str, int]]  # level -> split -> problems written; empty for a task without levels


def prepare(task: str, folder: Path, params: Data) -> Card:
    """Write `folder`, whole or not at all. ValueError when the task is unknown or its raw data is at fault."""
    problems = get_task(task).load(params)
    splits, dropped = select(problems.splits, params)
    card = _card(task, problems, splits, dropped, params)
    with atomic_folder(folder) as temporary:
        for split in SPLITS:
            write_parquet(temporary / f"{split}.parquet", to_table(splits[split]))
        write_json(temporary / "card.json", asdict(card))
    return card


def select(problems: Mapping[str, Sequence[Example]], params: Data) -> tuple[dict[str, list[Example]], dict[str, int]]:
    """Drop, and count by reason, what must not or need not be used.

    Repeated questions go, all but the first; then every train question that is also in test, so that test stays the
    whole of what others report on; then what is beyond the limits.
    """
    train, test = _without_repeats(problems["train"]), _without_repeats(problems["test"])
    held_out = {example.question for example in test}
    clean = [example for example in train if example.question not in held_out]
    dropped = {
        "train: repeated question": len(problems["train"]) - len(train),
        "test: repeated question": len(problems["test"]) - len(test),
        "train: question also in test": len(train) - len(clean),
        "train: beyond data.max_train": len(clean) - len(clean[: params.max_train]),
        "test: beyond data.max_test": len(test) - len(test[: params.max_test]),
    }
    return {"train": clean[: params.max_train], "test": test[: params.max_test]}, dropped


def _without_repeats(examples: Sequence[Example]) -> list[Example]:
    first: dict[str, Example] = {}
    for example in examples:
        first.setdefault(example.question, example)
    return list(first.values())


def _card(
    task: str,
    problems: Problems,
    splits: Mapping[str, Sequence[Example]],
    dropped: Mapping[str, int],
    params: Data,
) -> Card:
    return Card(
        task=task,
        source=problems.source,
        origin=problems.origin,
        revision=problems.revision,
        raw=dict(problems.files),
        expected=dict(problems.expected),
        read={split: len(problems.splits[split]) for split in SPLITS},
        dropped=dict(dropped),
        limits={"max_train": params.max_train, "max_test": params.max_test},
        counts={split: len(splits[split]) for split in SPLITS},
        levels={level: {split: _at_level(splits[split], level) for split in SPLITS} for level in problems.levels},
    )


def _at_level(examples: Sequence[Example], level: str) -> int:
    return sum(example.ability == level for example in examples)
