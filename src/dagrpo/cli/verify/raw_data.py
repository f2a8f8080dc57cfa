"""Raw files of prepared data, in a mirror or the hub's cache."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.data.pictures_beside import file_and_column, read_pictures_beside
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.provenance import are_digests

CARD = "card.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawData:
    """A raw file, or the pictures that one of its columns names."""

    name: str  # with its source
    digest: str  # on record
    place: Path | None  # None: it is not here
    column: str | None  # that names the pictures; None: the file itself

    def read(self) -> tuple[str | None, int]:
        """Return the digest today, and how many bytes were read for it. None: the file that names the pictures is damaged."""
        assert self.place is not None
        if self.column is None:
            return sha256_of(self.place), self.place.stat().st_size
        try:
            pictures = read_pictures_beside(self.place, self.column)
        except UserError:
            return None, 0
        return pictures.sha256, pictures.bytes


def raw_data(execution: ExecutionRecord) -> Iterator[RawData]:
    """Yield the raw files that an execution of the stage prepare read."""
    for path in execution.outputs:
        if Path(path).name != CARD or not Path(path).is_file():
            continue
        try:
            card = read_object(Path(path))
        except UserError:  # reported as a changed output
            continue
        if not are_digests(card.get("raw")):
            continue
        for name, digest in card["raw"].items():
            place, column = _found(card, name, execution.params)
            yield RawData(name=f"{card.get('source')}: {name}", digest=digest, place=place, column=column)


def _found(card: Mapping[str, Any], name: str, params: Mapping[str, Any]) -> tuple[Path | None, str | None]:
    """Return the place, and the column where pictures are meant. A file may have a name that reads like pictures."""
    place = _place(card, name, params)
    pictures = file_and_column(name)
    if place is not None or pictures is None:
        return place, None
    file, column = pictures
    return _place(card, file, params), column


def _place(card: Mapping[str, Any], name: str, params: Mapping[str, Any]) -> Path | None:
    if card.get("origin") == "mirror":
        mirror = params.get("data", {}).get("mirror")
        place = Path(mirror, name) if isinstance(mirror, str) else None
        return place if place is not None and place.is_file() else None
    return _in_cache(str(card.get("source")), name, card.get("revision"))


def _in_cache(repository: str, name: str, revision: object) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, name, revision=str(revision), repo_type="dataset")
    except HFValidationError:  # a generator's source is no repository
        return None
    return Path(found) if isinstance(found, str) else None
