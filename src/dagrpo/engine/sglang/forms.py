"""JSON forms of an SGLang server's answers."""

from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dagrpo.core.escape import one_line
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import LONGEST_MESSAGE, text_of

MOST_TENSORS = 1 << 18  # of a model
USE_KNOWN_VERSION = "use the version of SGLang that requirements/ names"

T = TypeVar("T")
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
NONE = msgspec.Raw(b"[]")


class _Reason(msgspec.Struct):
    type: str
    message: Any = None


class _Span(msgspec.Struct):
    version: str


class About(msgspec.Struct):
    """Facts of one completion."""

    finish_reason: _Reason
    weight_version: str
    weight_versions: list[_Span] | None = None
    cached_tokens: Token = 0
    input_token_logprobs: msgspec.Raw = NONE  # see entries_of
    output_token_logprobs: msgspec.Raw = NONE
    output_token_sampling_mask: list[list[Token]] | None = None
    output_token_sampling_logprobs: list[float | None] = []


class Reply(msgspec.Struct):
    """One completion."""

    meta_info: About
    output_ids: list[Token] = []
    prompt_token_ids: list[Token] = []


class _Place(msgspec.Struct):
    tp_rank: int
    tp_size: int
    dp_size: int
    pp_size: int


class _Rank(msgspec.Struct):
    checksums: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_TENSORS)]
    parallelism_info: Annotated[list[_Place], msgspec.Meta(min_length=1)]  # the model's, then a draft model's


class Digests(msgspec.Struct):
    """Digests of the tensors of each rank."""

    ranks: Annotated[list[_Rank], msgspec.Meta(min_length=1)]


class Adapters(msgspec.Struct):
    """Adapters that a server holds."""

    loaded_adapters: dict[str, Any]


REPLIES = msgspec.json.Decoder(list[Reply])
DIGESTS = msgspec.json.Decoder(Digests)
ADAPTERS = msgspec.json.Decoder(Adapters)
_FLAT = msgspec.json.Decoder(list[float | int | str | None])
# Errors of an answer of another form.
WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def entries_of(raw: msgspec.Raw, address: str) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Return the logprobs (NaN for null) and tokens of a list of (logprob, token, text). Raises ServerError if it is no such list.

    They are read as one flat list, since a list for each of millions of tokens takes twice as long. Brackets in a text, which is not
    read, go too.
    """
    try:
        flat: list[Any] = _FLAT.decode(b"[%b]" % bytes(raw).translate(None, b"[] \t\r\n"))
        values, tokens = flat[::3], flat[1::3]
        # Types first: beside a text, numpy would keep each number as a text of its length.
        are_typed = {*map(type, values)} <= {float, int, type(None)} and {*map(type, tokens)} <= {int}
        if len(flat) % 3 or not are_typed or (tokens and not 0 <= min(tokens) <= max(tokens) < 1 << 31):
            raise msgspec.ValidationError("a list of logprobs has other entries than logprob, token and text")
        return np.array(values, np.float64), tuple(tokens)  # None is NaN
    except (*WRONG, OverflowError) as error:
        raise refused(address, "/generate", str(error), bytes(raw)) from None


def parsed(form: msgspec.json.Decoder[T], data: bytes, path: str, address: str, remedy: str = USE_KNOWN_VERSION) -> T:
    """Return a server's JSON of this form. Raises ServerError if it is of another one."""
    try:
        return form.decode(data)
    except WRONG as error:
        raise refused(address, path, str(error), data, remedy) from None


def refused(address: str, path: str, fault: str, data: bytes, remedy: str = USE_KNOWN_VERSION) -> ServerError:
    """Return the error of an answer that SGLang would not give."""
    start = one_line(text_of(data[:LONGEST_MESSAGE]), 80)
    return ServerError(
        f"{address} did not answer {path} as SGLang does ({one_line(fault, 100)}; the answer begins with {start!r}): it is not an SGLang "
        f"server, or of an unsupported version; {remedy}."
    )
