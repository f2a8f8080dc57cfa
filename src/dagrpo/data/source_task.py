"""Tasks whose rows are those of a data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagrpo.core.errors import UserError, place_of_code
from dagrpo.core.image_tokens import IMAGE
from dagrpo.core.types import Row
from dagrpo.data.raw_row import RawRow
from dagrpo.data.source import SPLITS, RawFile, Source, hub_place, mirror_place, require_rows
from dagrpo.data.task import Task, TaskRows
from dagrpo.utils.files import sha256_of

if TYPE_CHECKING:
    from dagrpo.data.config import Data
    from dagrpo.data.reading import Reader

ToRow = Callable[[RawRow], Row | None]  # None: the row belongs to another task


def sourced_task(
    name: str,
    source: Source,
    to_row: ToRow,
    *,
    verifier: str,
    tools: tuple[str, ...] = (),
    interaction: str = "",
    images: bool = False,
    prompt_tokens: int | None = None,
    files: tuple[str, ...] = (),
) -> Task:
    """Return a task with one row for each raw row of a source. `to_row` sets its prompt and answers, the task all other fields."""

    def load(params: "Data") -> TaskRows:
        return _load(task, source, to_row, params)

    def load_tests(params: "Data") -> TaskRows:
        return _load(task, source, to_row, params, only="test")

    task = Task(
        name=name,
        load=load,
        verifier=verifier,
        tools=tools,
        interaction=interaction,
        images=images,
        load_tests=None if source.held_out else load_tests,
        source=source,
        prompt_tokens=prompt_tokens,
        files=files,
    )
    return task


@dataclass(slots=True, kw_only=True)
class _Split:
    """The rows of one split, as read."""

    rows: list[Row] = field(default_factory=list)
    read: int = 0
    files: dict[str, str] = field(default_factory=dict)  # as in TaskRows


def _load(task: Task, source: Source, to_row: ToRow, params: "Data", only: str | None = None) -> TaskRows:
    """Read the splits of a source, or `only` one of them."""
    place = hub_place(source) if params.mirror is None else mirror_place(source, Path(params.mirror))
    splits = {split: _Split() for split in SPLITS}
    for split, files in place.files.items():
        if only not in (None, split):
            continue
        splits[split] = _read_split(task, source, to_row, split, files, params)
    return TaskRows(
        splits={split: part.rows for split, part in splits.items()},
        source=source.repository,
        origin=place.origin,
        revision=place.revision,
        files={name: digest for part in splits.values() for name, digest in part.files.items()},
        expected={**{split: 0 for split in SPLITS if split not in source.mirror_files}, **source.rows},
        read={split: part.read for split, part in splits.items()},
        held_out=source.held_out,
        untested=source.untested,
    )


def _read_split(
    task: Task, source: Source, to_row: ToRow, split: str, files: Sequence[RawFile], params: "Data"
) -> _Split:
    """Return all rows of a split, or as many as are needed of a source too large to be read whole."""
    import pyarrow as pa  # here: params.yaml is checked by tasks' modules, and should not wait for it

    from dagrpo.data.reading import Reader
    from dagrpo.utils.console import progress

    enough = _enough(source, params)
    reader, part, others = Reader(source), _Split(), 0
    with progress(f"prepare {task.name}: {split} problems", enough or source.rows.get(split, 0), brief=True) as bar:
        for raw in _raw_rows(reader, files, part.files):
            row = to_row(raw)
            if row is None:
                others += 1
                continue
            part.rows.append(_completed(task, source, raw, row, split, len(part.rows)))
            bar.advance()
            if len(part.rows) == enough:
                break
    if others and not part.rows:
        raise UserError(
            f"{place_of_code(to_row)}: None, which leaves a row out, is returned for every row of {_label(files)}."
        )
    pa.default_memory_pool().release_unused()  # Arrow keeps what it read with, and what comes next needs it
    part.read = reader.read - others
    part.files |= _picture_digests(files, part.files, reader.columns_of_paths)
    if not source.sampled:
        require_rows(source, split, _label(files), len(part.rows), params)
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
    return params.max_train + params.held_out + params.held_out_validation


def _raw_rows(reader: "Reader", files: Sequence[RawFile], digests: dict[str, str]) -> Iterator[RawRow]:
    """Yield the rows of the files in turn; fetch each file, and take its sha256, when it is read."""
    for file in files:
        path = file.fetch()
        digests[file.name] = sha256_of(path)
        yield from reader.rows(path, file.label)


def _picture_digests(files: Sequence[RawFile], digests: Mapping[str, str], columns: Set[str]) -> dict[str, str]:
    """Return the digests over the pictures that the files name, for the files that were read."""
    from dagrpo.data.reading import name_in_card, picture_digest

    return {
        name_in_card(file.name, column): picture_digest(file.fetch(), column).sha256
        for file in files
        if file.name in digests
        for column in sorted(columns)
    }


def _completed(task: Task, source: Source, raw: RawRow, row: Row, split: str, index: int) -> Row:
    """Return the row with the fields that are the task's. Raises UserError if its pictures do not fit its prompt."""
    places, pictures = sum(message["content"].count(IMAGE) for message in row.prompt), len(row.images)
    if task.images and places != pictures:
        raise raw.error("images", f"does not fit the prompt (pictures: {pictures}, `{IMAGE}` in the prompt: {places})")
    return replace(
        row,
        task=task.name,
        split=split,
        index=index,
        data_source=source.scored_as or source.repository,
        verifier=task.verifier,
        tools=task.tools,
        interaction=task.interaction,
    )
