"""Reader of untrusted crates.

A crate is a folder with ro-crate-metadata.json; a model folder of `dagrpo publish` has one in its folder `crate`. Of a crate only
the provenance.json files, the accounts, the scores and the digests of code are read, within limits. Nothing in it is run.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from dagrpo.core.errors import UserError
from dagrpo.core.escape import brief, one_line
from dagrpo.core.experiment import Name
from dagrpo.core.section import LONGEST_TEXT
from dagrpo.core.untrusted_json import read_json
from dagrpo.utils.file_names import is_below
from dagrpo.utils.provenance import PROVENANCE
from dagrpo.utils.run_info import SUFFIX
from dagrpo_publish.crate.finished import SUMMARY
from dagrpo_publish.crate.writing import CODE, METADATA, TOOL

INSIDE = "crate"  # a crate's folder in that of a published model
LARGEST = 16 << 20  # bytes of all files that are read, together
LARGEST_METADATA = 64 << 20
MOST_ENTITIES = 200_000
MOST_FILES = 20_000
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digests = Annotated[dict[Text, Digest], Field(max_length=MOST_FILES)]
Facts = Annotated[dict[Text, Text], Field(max_length=100)]
Model = TypeVar("Model", bound=BaseModel)


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", str_max_length=LONGEST_TEXT)


class Recorded(_Read):
    """A provenance.json of a crate. Parameters are checked later, by the schema."""

    stage: Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]
    experiment: Name
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    params: dict[str, Any]
    runtime: dict[str, Any] = {}
    code: Digest
    environment: Facts = {}
    inputs: Digests
    outputs: Digests

    @property
    def what(self) -> str:
        """Return the job in words."""
        return self.stage if self.seed is None else f"{self.stage}, seed {self.seed}"


class _Account(_Read):
    """Account of an execution, as far as it is read."""

    provenance: Digest
    facts: Facts = {}


class _Entity(_Read):
    """Entity of the metadata, as far as it is read."""

    id: Text = Field(alias="@id")
    sha256: Digest | None = None
    version: Any = Field(None, validation_alias=AliasChoices("version", "softwareVersion"))  # of code its digest
    part: Any = Field(None, alias="hasPart")

    @property
    def name(self) -> str:
        """Return the name as it was before it became a part of a URI."""
        return unquote(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crate:
    """Records of an experiment on another machine."""

    experiment: str
    records: tuple[Recorded, ...]
    code: Mapping[str, Mapping[str, str]]  # stage -> sha256 of each file, as far as the crate has them
    scores: Mapping[str, Mapping[str, Any]]  # path -> scores.json
    facts: Mapping[str, str] = field(default_factory=dict)  # hardware and commit, by the account of its training


def read_crate(place: Path) -> Crate:
    """Read a crate, or the folder of a published model. Raises UserError naming what is missing, damaged or beyond a limit."""
    folder = next((each for each in (place, place / INSIDE) if (each / METADATA).is_file()), None)
    if folder is None:
        raise UserError(
            f"{place} has no {METADATA}, nor a folder `{INSIDE}` with one: name the folder that `dagrpo crate` or `dagrpo publish` "
            "has written."
        )
    entities = {each.name: each for each in _entities(folder)}
    records, scores, accounts, left = [], {}, [], LARGEST
    for name, entity in entities.items():
        if entity.sha256 is None or not name.endswith((PROVENANCE, SUMMARY, SUFFIX)):
            continue
        content = _read(folder, name, entity.sha256, left)
        left -= (folder / name).stat().st_size
        if name.endswith(PROVENANCE):
            records.append((entity.sha256, _checked(Recorded, content, name)))
        elif name.endswith(SUMMARY):
            scores[name] = content
        else:
            accounts.append(_checked(_Account, content, name))
    if len({record.experiment for _, record in records}) != 1:
        raise UserError(
            f"{folder} has the records of {len({r.experiment for _, r in records})} experiments: a crate has one."
        )
    trained = {digest for digest, record in records if record.stage == "train"}
    return Crate(
        experiment=records[0][1].experiment,
        records=tuple(record for _, record in records),
        code=dict(_code(entities)),
        scores=scores,
        facts=next((each.facts for each in accounts if each.provenance in trained), {}),
    )


def _entities(folder: Path) -> Iterator[_Entity]:
    content = _parsed(folder, METADATA, LARGEST_METADATA)
    graph = content.get("@graph")
    if not isinstance(graph, list) or len(graph) > MOST_ENTITIES:
        raise UserError(
            f"{folder / METADATA} has no list of at most {MOST_ENTITIES:,} entities: fetch the crate again."
        )
    for each in graph:
        yield _checked(_Entity, each, METADATA)


def _code(entities: Mapping[str, _Entity]) -> Iterator[tuple[str, dict[str, str]]]:
    for name, entity in entities.items():
        if not name.startswith(TOOL):
            continue
        parts = entity.part if isinstance(entity.part, list) else [entity.part]
        named = [unquote(str(part.get("@id"))) for part in parts if isinstance(part, dict)]
        files = {each.removeprefix(CODE): entities[each].version for each in named if each in entities}
        yield name.removeprefix(TOOL), {file: digest for file, digest in files.items() if isinstance(digest, str)}


def _read(folder: Path, name: str, digest: str, most: int) -> dict[str, Any]:
    """Read a JSON file that the metadata names. Raises UserError for a name or a link that leaves, or another content."""
    if not is_below(name) or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{folder / METADATA} names {brief(name)}, which is not a file in it: do not use this crate.")
    return _parsed(folder, name, most, digest)


def _parsed(folder: Path, name: str, most: int, digest: str | None = None) -> dict[str, Any]:
    path = folder / name
    try:
        if not path.is_file() or path.stat().st_size > most:
            raise UserError(
                f"{path} is not a file of at most {most:,} bytes, which are left of the crate's limit: fetch it again."
            )
        data = path.read_bytes()
        content = read_json(data)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read ({one_line(str(error), 200)}): fetch the crate again.") from None
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path} is not the file that {METADATA} describes, by its sha256: fetch the crate again.")
    if not isinstance(content, dict):
        raise UserError(f"{path} has no JSON object: fetch the crate again.")
    return content


def _checked(model: type[Model], content: Any, name: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = one_line(".".join(map(str, first["loc"])), 80)
        raise UserError(
            f"{one_line(name, 200)} of the crate is not what it should be ({field}: {first['msg']})."
        ) from None
