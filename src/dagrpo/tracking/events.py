"""The events of a journal, and the check that a line is one of them.

A journal outlives the process that wrote it, so what is read may be cut off, damaged, or by another version: nothing in it
is used before it has passed this check. Text alone: the files that events refer to are checked by whoever opens them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dagrpo.errors import UserError
from dagrpo.rollout.untrusted_json import read_json

Event = Mapping[str, Any]  # {"event": kind, "time": milliseconds since 1970, ...}
LONGEST_LINE = 1 << 24  # bytes: params and digests of a stage take some ten thousand
LATEST = 1 << 53  # milliseconds, and steps: what any reader of numbers can hold
Whole = Annotated[int, Field(ge=0, le=LATEST)]
Digests = dict[str, str]  # {path: sha256}
Status = Literal["FINISHED", "FAILED", "KILLED"]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Record(_Shape):
    stage: str
    experiment: str
    seed: Whole | None
    params: dict[str, Any]
    code: str
    key: str
    inputs: Digests
    outputs: list[str]
    overrides: dict[str, Any] = {}
    taken_from: str = ""


class _Process(BaseModel):
    """As environment.Process."""

    model_config = ConfigDict(strict=True, extra="forbid")
    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    started: float
    host: str
    boot: str = ""


class _Configuration(_Shape):
    digest: str = ""
    seeds: list[Whole] = []
    changed: dict[str, Any] = {}


class _Timed(_Shape):
    time: Whole


class _Start(_Timed):
    event: Literal["start"]
    process: _Process
    record: _Record
    uri: str
    artifacts: str | None
    tags: dict[str, str]
    variation: str = ""
    configuration: _Configuration = _Configuration()
    behind: Digests = {}


class _Metrics(_Timed):
    event: Literal["metrics"]
    step: Whole
    values: dict[str, float | None]


class _Artifact(_Timed):
    event: Literal["artifact"]
    file: str
    folder: str


class _Table(_Timed):
    event: Literal["table"]
    file: str
    name: str


class _Traces(_Timed):
    event: Literal["traces"]
    file: str


class _Dataset(_Timed):
    event: Literal["dataset"]
    name: str
    digest: str
    context: str
    path: str
    bytes: Whole
    rows: Whole | None = None
    columns: dict[str, str] = {}


class _Problems(_Timed):
    event: Literal["problems"]
    name: str
    digest: str
    file: str


class _Page(_Timed):
    event: Literal["page"]
    seed: Whole | None
    page: dict[str, Any]  # as pages.Page
    curves: str  # a file; "": none


class _Tags(_Timed):
    event: Literal["tags"]
    values: dict[str, str]


class _Outputs(_Timed):
    event: Literal["outputs"]
    digests: Digests


class _Error(_Timed):
    event: Literal["error"]
    words: str


class _End(_Timed):
    event: Literal["end"]
    status: Status


_Any = (
    _Start | _Metrics | _Artifact | _Table | _Traces | _Dataset | _Problems | _Page | _Tags | _Outputs | _Error | _End
)
_EVENTS: TypeAdapter[_Any] = TypeAdapter(Annotated[_Any, Field(discriminator="event")])


def event_of(line: bytes) -> Event:
    """The event that a line of a journal holds. UserError says what is wrong with it."""
    if len(line) > LONGEST_LINE:
        raise UserError(f"it has more than {LONGEST_LINE:,} bytes")
    try:
        event: Event = read_json(line)
        _EVENTS.validate_python(event)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UserError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return event
