"""Base class of params.yaml's sections: closed, frozen, strict."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from dagrpo.core.errors import UserError

LONGEST_TEXT = 4096  # characters, as of a path
MOST_TOKENS = 1 << 22  # of a text: more than any model reads
MOST_PIXELS = 40_000_000  # 160 MB when unpacked; a file of a few kilobytes may claim billions
MOST_ELONGATED = 200  # times a picture is as long as wide, at most: the image processor refuses more
MOST_CHARACTERS = 10_000_000  # of a result
MOST_STEPS = 10_000_000
LARGEST_BATCH = 1_000_000
MOST_PROCESSES = 4096

Seed = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, le=100_000_000)]  # of problems
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0.01, le=604_800)]  # up to a week; less than a timer's grain would be no limit
Factor = Annotated[float, Field(ge=-1000, le=1000)]  # of a reward
Temperature = Annotated[float, Field(ge=0.01, le=100)]  # below, an engine samples greedily
TopP = Annotated[float, Field(ge=0.001, le=1)]
TopK = Annotated[int, Field(ge=-1, le=1 << 24)]
Step = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Every = Annotated[dict[Literal["every"], Step], Field(min_length=1, max_length=1), Tag("[every]")]
LIST_OR_EVERY = Discriminator(
    lambda value: "[every]" if isinstance(value, dict) else "[list]"
)  # of a list with the tag [list]
HeadDtype = Literal["float32"] | None  # type of the language-model head; None: that of the model
Texts = Annotated[list[str], Field(max_length=1000)]
# A mapping that its reader alone checks.
Unchecked = Annotated[dict[str, Any], Field(max_length=1000)]
_EXPONENT = re.compile(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+")


class Section(BaseModel):
    """One section of params.yaml. An unknown key or a wrong type is an error; nothing changes after parsing.

    Every float is finite, every text bounded. The bounds of numbers and lists are for each field to say. A section that depends on
    others has a method `check`, whose parameters are named after these: `check(self, rollout, training)`. It is called when
    params.yaml has been parsed, and raises UserError if they do not fit.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        str_max_length=LONGEST_TEXT,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_exponents_as_numbers(cls, values: Any) -> Any:
        """Parse 1e-4 as a number: YAML 1.1, which Snakemake reads, takes it for a text; YAML 1.2, which DVC reads, does not."""
        if not isinstance(values, dict):
            return values
        numbers = {name for name, field in cls.model_fields.items() if _takes_float(field.annotation)}
        return {k: _with_number(v) if k in numbers else v for k, v in values.items()}


def _takes_float(annotation: Any) -> bool:
    """Return True for a float's annotation, nullable or not."""
    return annotation is float or any(_takes_float(part) for part in get_args(annotation))


def _with_number(value: Any) -> Any:
    if isinstance(value, dict):  # as of shares
        return {key: _with_number(each) for key, each in value.items()}
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def require_commit(revision: str | None, key: str) -> None:
    """Raise UserError unless the hub revision at this key is a whole commit."""
    if revision is not None and not (len(revision) == 40 and set(revision) <= set("0123456789abcdef")):
        raise UserError(f"{key} is {revision!r}: give the full commit, 40 hex digits, since a branch can move")
