"""Tasks whose problems are the rows of a data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError
from dagrpo.core.image_tokens import IMAGE
from dagrpo.core.types import Example
from dagrpo.data.raw_files import hub_place, mirror_place
from dagrpo.data.row import Row
from dagrpo.data.source import SPLITS, RawFile, Source, require_rows
from dagrpo.data.task import Problem, Problems, Task
from dagrpo.utils.files import sha256_of

if TYPE_CHECKING:
    from dagrpo.data.config import Data
    from dagrpo.data.reading import Reader

ToProblem = Callable[[Row], Problem]


def sourced_task(
    name: str,
    source: Source,
    to_problem: ToProblem,
    *,
    verifier: str,
    tools: tuple[str, ...] = (),
    interaction: str = "",
    images: bool = False,
) -> Task:
    """Return a task whose problems are the rows of a source, one each."""

    def load(params: "Data") -> Problems:
        return _load(task, source, to_problem, params)

    def load_tests(params: "Data") -> Problems:
        return _load(task, source, to_problem, params, only="test")

    task = Task(
        name=name,
        load=load,
        verifier=verifier,
        tools=tools,
        interaction=interaction,
        images=images,
        load_tests=None if source.held_out else load_tests,
    )
    return task


@dataclass(slots=True, kw_only=True)
class _Split:
    """The rows of one split, as read."""

    examples: list[Example] = field(default_factory=list)
    read: int = 0
    files: dict[str, str] = field(default_factory=dict)  # as in Problems


def _load(task: Task, source: Source, to_problem: ToProblem, params: "Data", only: str | None = None) -> Problems:
    """Read the splits of a source, or `only` one of them."""
    place = hub_place(source) if params.mirror is None else mirror_place(source, Path(params.mirror))
    splits = {split: _Split() for split in SPLITS}
    for split, files in place.files.items():
        if only not in (None, split):
            continue
        splits[split] = _read_split(task, source, to_problem, split, files, params)
    return Problems(
        splits={split: part.examples for split, part in splits.items()},
        source=source.repository,
        origin=place.origin,
        revision=place.revision,
        files={name: digest for part in splits.values() for name, digest in part.files.items()},
        expected={**{split: 0 for split in SPLITS if split not in source.mirror_files}, **source.rows},
        read={split: part.read for split, part in splits.items()},
        held_out=source.held_out,
    )


def _read_split(
    task: Task, source: Source, to_problem: ToProblem, split: str, files: Sequence[RawFile], params: "Data"
) -> _Split:
    """Return all rows of a split, or as many as are needed of a source too large to be read whole."""
    import pyarrow as pa  # here: params.yaml is checked by tasks' modules, and should not wait for it

    from dagrpo.data.reading import Reader
    from dagrpo.utils.console import progress

    enough = _enough(source, params)
    reader, part = Reader(source), _Split()
    with progress(f"prepare {task.name}: {split} problems", enough or source.rows.get(split, 0), brief=True) as bar:
        for row in _rows(reader, files, part.files):
            part.examples.append(_example(task, source, row, to_problem(row), split, len(part.examples)))
            bar.advance()
            if len(part.examples) == enough:
                break
    pa.default_memory_pool().release_unused()  # Arrow keeps what it read with, and what comes next needs it
    part.read = reader.read
    part.files |= _pictures_beside(files, part.files, reader.columns_of_paths)
    if not source.sampled:
        require_rows(source, split, _label(files), len(part.examples), params)
    return part


def _label(files: Sequence[RawFile]) -> str:
    return files[0].label if len(files) == 1 else f"{files[0].label} with {len(files) - 1} more"


def _enough(source: Source, params: "Data") -> int | None:
    if not source.sampled:
        return None
    if params.max_train is None:
        raise UserError(
            f"{source.repository} is too large to be read whole: set data.max_train to how many problems to train on."
        )
    return params.max_train + params.held_out


def _rows(reader: "Reader", files: Sequence[RawFile], digests: dict[str, str]) -> Iterator[Row]:
    """Yield the rows of the files in turn; fetch each file, and take its sha256, when it is read."""
    for file in files:
        path = file.fetch()
        digests[file.name] = sha256_of(path)
        yield from reader.rows(path, file.label)


def _pictures_beside(files: Sequence[RawFile], digests: Mapping[str, str], columns: Set[str]) -> dict[str, str]:
    """Return the digests over the pictures that the files name, for the files that were read."""
    from dagrpo.data.pictures_beside import name_in_card, read_pictures_beside

    return {
        name_in_card(file.name, column): read_pictures_beside(file.fetch(), column).sha256
        for file in files
        if file.name in digests
        for column in sorted(columns)
    }


def _example(task: Task, source: Source, row: Row, problem: Problem, split: str, index: int) -> Example:
    places, pictures = sum(message["content"].count(IMAGE) for message in problem.prompt), len(problem.images)
    if task.images and places != pictures:
        raise row.error("images", f"does not fit the prompt (pictures: {pictures}, `{IMAGE}` in the prompt: {places})")
    return Example(
        task=task.name,
        split=split,
        index=index,
        prompt=problem.prompt,
        question=problem.question,
        answer=problem.answer,
        ground_truth=problem.ground_truth,
        data_source=source.repository,
        verifier=task.verifier,
        images=problem.images,
        tools=task.tools,
        interaction=task.interaction,
        pass_rate=problem.pass_rate,
        demonstration=problem.demonstration,
    )
