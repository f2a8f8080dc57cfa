"""JSON forms of an SGLang server's answers."""

from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from dagrpo.core.escape import one_line
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import LONGEST_MESSAGE, text_of

MOST_TENSORS = 1 << 18  # of a model
USE_KNOWN_VERSION = "use the version of SGLang that requirements/ names"

T = TypeVar("T")
# A list of which the first wrong item ends the parsing: pydantic keeps an error for each, thousands of bytes for two of the answer.
Items = Annotated[list[T], Field(fail_fast=True)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Entry = tuple[float | None, Token, Any]  # logprob (null: not finite), token, text


class _Reason(TypedDict):
    type: str
    message: NotRequired[Any]


class _Span(TypedDict):
    version: str


class About(TypedDict):
    """Facts of one completion."""

    finish_reason: _Reason
    weight_version: str
    weight_versions: NotRequired[Items[_Span] | None]
    cached_tokens: NotRequired[Token]
    input_token_logprobs: NotRequired[Items[Entry]]
    output_token_logprobs: NotRequired[Items[Entry]]
    output_token_sampling_mask: NotRequired[Items[Items[Token]] | None]
    output_token_sampling_logprobs: NotRequired[Items[float | None]]


class Reply(TypedDict):
    """One completion."""

    meta_info: About
    output_ids: NotRequired[Items[Token]]
    prompt_token_ids: NotRequired[Items[Token]]


class _Place(TypedDict):
    tp_rank: int
    tp_size: int
    dp_size: int
    pp_size: int


class _Rank(TypedDict):
    checksums: Annotated[dict[str, str], Field(max_length=MOST_TENSORS)]
    parallelism_info: Annotated[list[_Place], Field(min_length=1, fail_fast=True)]  # the model's, then a draft model's


class Digests(TypedDict):
    """Digests of the tensors of each rank."""

    ranks: Annotated[list[_Rank], Field(min_length=1, fail_fast=True)]


class Adapters(TypedDict):
    """Adapters that a server holds."""

    loaded_adapters: dict[str, Any]


REPLIES: TypeAdapter[list[Reply]] = TypeAdapter(Items[Reply])
DIGESTS: TypeAdapter[Digests] = TypeAdapter(Digests)
ADAPTERS: TypeAdapter[Adapters] = TypeAdapter(Adapters)


def parsed(kind: TypeAdapter[T], data: bytes, path: str, address: str, remedy: str = USE_KNOWN_VERSION) -> T:
    """Return a server's JSON of this form. Raises ServerError if it is of another one."""
    try:
        return kind.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise refused(address, path, f"{where}: {first['msg']}" if where else first["msg"], data, remedy) from None


def refused(address: str, path: str, fault: str, data: bytes, remedy: str = USE_KNOWN_VERSION) -> ServerError:
    """Return the error of an answer that SGLang would not give."""
    start = one_line(text_of(data[:LONGEST_MESSAGE]), 80)
    return ServerError(
        f"{address} did not answer {path} as SGLang does ({one_line(fault, 100)}; the answer begins with {start!r}): it is not an SGLang "
        f"server, or of an unsupported version; {remedy}."
    )
