"""What a task is: a name, and where its problems come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dagrpo.params.data import Data
from dagrpo.records import Example
from dagrpo.tasks.hub import read_hub
from dagrpo.tasks.mirror import read_mirror
from dagrpo.tasks.source import SPLITS, Row, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """All problems of a task, in its prompt form, before any is dropped."""

    splits: Mapping[str, Sequence[Example]]  # train, test
    source: str
    origin: str  # "hub", "mirror" or "generator"
    revision: str | None  # commit on the hub
    files: Mapping[str, str]  # raw file -> sha256
    expected: Mapping[str, int]  # split -> problems that the whole source holds
    levels: Sequence[str] = ()  # where an example's `ability` is its level: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A data set in one prompt form. `load` raises ValueError on bad raw data."""

    name: str
    load: Callable[[Data], Problems]


def sourced_task(name: str, source: Source, to_example: Callable[[Row, str, int], Example]) -> Task:
    """A task whose problems are the rows of a source; `to_example` is given a row, its split and its index there."""
    return Task(name=name, load=partial(_load, source, to_example))


def _load(source: Source, to_example: Callable[[Row, str, int], Example], params: Data) -> Problems:
    raw = read_hub(source, params) if params.mirror is None else read_mirror(source, Path(params.mirror), params)
    return Problems(
        splits={
            split: [to_example(row, split, index) for index, row in enumerate(raw.rows.get(split, ()))]
            for split in SPLITS
        },
        source=source.repository,
        origin=raw.origin,
        revision=raw.revision,
        files=raw.files,
        expected={split: source.rows.get(split, 0) for split in SPLITS},
    )
