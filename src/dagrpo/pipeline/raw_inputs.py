"""Inputs that no stage makes, compared by content.

They are files that parameters name, and the pictures that raw rows name. A large file is read again only if its size or time has
changed. One that is missing after its job has run is no change: its content is on record.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import flat
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.data.reading import file_and_column, picture_digest
from dagrpo.data.task import get_task
from dagrpo.tools import TOOLS, config_for
from dagrpo.utils.files import digest_of, read_object, write_json
from dagrpo.utils.manifest import NOTES, noted_sha256
from dagrpo.utils.provenance import TOPS, are_digests

CARD = "card.json"  # of prepared data: names the raw files and their digests
Digests = tuple[str | None, str]  # on record, None without one; and now


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData:
    """A raw file, or the pictures that one of its columns names."""

    name: str  # with its source
    digest: str  # on record
    place: Path | None  # None: it is not here
    column: str | None  # that names the pictures; None: the file itself


def is_own(path: str, experiment: str) -> bool:
    """Return True if a path is in the folders of an experiment, so that a stage makes it."""
    return path.startswith(tuple(f"{top}/{experiment}/" for top in TOPS))


def parameter_with(path: str, params: Params) -> str:
    """Return the key of the parameter that names a raw file or a folder that holds it; "the task", for a file that a task declares."""
    values = {key: value for key, value in flat(params.model_dump()).items() if isinstance(value, str) and value}
    named = {str(Path(value)): key for key, value in values.items()}
    places = (str(place) for place in (Path(path), *Path(path).parents))
    return next((named[place] for place in places if place in named), "the task")


def raw_recorded(inputs: Mapping[str, str], experiment: str) -> dict[str, str]:
    """Return the sha256 of each raw file by path, from a record's inputs."""
    return {path: digest for path, digest in inputs.items() if not is_own(path, experiment)}


def missing_raw(inputs: Mapping[str, str], experiment: str) -> list[str]:
    """List the raw files of a record that are not here any more."""
    return [path for path in raw_recorded(inputs, experiment) if not Path(path).is_file()]


def changed_raw(record: Mapping[str, Any], planned: Collection[str] = ()) -> dict[str, Digests]:
    """Return the raw files whose content differs from a record, and those that have come since, by name.

    `record`: an execution's provenance.json. `planned`: the raw files of the same job by today's parameters.
    """
    recorded = raw_recorded(record["inputs"], record["experiment"])
    there = [path for path in dict.fromkeys([*recorded, *planned]) if Path(path).is_file()]
    now = {path: noted_sha256(Path(path)) for path in there}
    files = {path: (recorded.get(path), digest) for path, digest in now.items() if digest != recorded.get(path)}
    for raw in raw_data(record["outputs"], record["params"]) if not files else ():
        if raw.column is not None and raw.place is not None:
            picture = noted_picture_digest(raw.place, raw.column)
            if picture != raw.digest:
                files[f"a picture that {raw.place} names in {raw.column}"] = (raw.digest, picture)
    return files


def raw_data(outputs: Iterable[str], params: Mapping[str, Any]) -> Iterator[RawData]:
    """Yield the raw files that an execution of the stage prepare read, by its outputs and parameters."""
    for path in outputs:
        if Path(path).name != CARD or not Path(path).is_file():
            continue
        try:
            card = read_object(Path(path))
        except UserError:  # reported as a changed output
            continue
        if not are_digests(card.get("raw")):
            continue
        for name, digest in card["raw"].items():
            place, column = _locate(card, name, params)
            yield RawData(name=f"{card.get('source')}: {name}", digest=digest, place=place, column=column)


def _locate(card: Mapping[str, Any], name: str, params: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    """Return the path of raw data, and the column if pictures are meant. A file may have a name that looks like pictures."""
    place, pictures = _place(card, name, params), file_and_column(name)
    if place is not None or pictures is None:
        return place, None
    return _place(card, pictures[0], params), pictures[1]


def _place(card: Mapping[str, Any], name: str, params: Mapping[str, Any]) -> Path | None:
    if card.get("origin") == "mirror":
        mirror = params.get("data", {}).get("mirror")
        place = Path(mirror, name) if isinstance(mirror, str) else None
        return place if place is not None and place.is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = str(card.get("source")), str(card.get("revision"))
    try:
        path = try_to_load_from_cache(repository, name, revision=revision, repo_type="dataset")
    except HFValidationError:  # a generator's source is no repository
        return None
    return Path(path) if isinstance(path, str) else None


def noted_picture_digest(place: Path, column: str) -> str:
    """Return `picture_digest`, from a note if the file and all pictures have the size and the time of when it was taken.

    "" if the file cannot be read as rows.
    """
    note = NOTES / f"pictures-{digest_of([str(place.absolute()), column])[:16]}.json"
    with suppress(OSError, UserError, KeyError, TypeError):
        noted = read_object(note)
        if noted["version"] == _version(place, noted["names"]):
            return str(noted["sha256"])
    try:
        found = picture_digest(place, column)
    except UserError:
        return ""
    with suppress(OSError):
        version = _version(place, found.names)
        write_json(note, {"version": version, "names": found.names, "sha256": found.sha256})
    return found.sha256


def _version(place: Path, names: Iterable[str]) -> str:
    stats = [(place.parent / name).stat() for name in (place.name, *names)]
    return digest_of(json.dumps([[each.st_ino, each.st_size, each.st_mtime_ns] for each in stats]))


def files_of_tools(params: Params, tasks: Collection[str]) -> list[str]:
    """List the paths that the parameters of these tasks' tools name, such as corpora."""
    tools = sorted({tool for name in tasks for tool in get_task(name).tools})
    return [path for name in tools for path in TOOLS.get(name).files(config_for(name, params.rollout.tools))]
