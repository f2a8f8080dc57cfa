"""Parse and check the answers of an SGLang server.

A server may run elsewhere, be of another version, or not be an SGLang server at all.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dagrpo.core.escape import one_line
from dagrpo.core.image_tokens import picture_lengths
from dagrpo.core.types import ABORTED, Completion, PromptPictures, SamplingRequest, ScoringRequest
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import LONGEST_MESSAGE, text_of
from dagrpo.engine.interface import WITHOUT_WEIGHTS, WeightVersion
from dagrpo.engine.sglang.images import files_of, written_length

MOST_TENSORS = 1 << 18  # of a model
USE_KNOWN_VERSION = "use the version of SGLang that requirements/ names"

Request = TypeVar("Request", SamplingRequest, ScoringRequest)
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
    input_token_logprobs: msgspec.Raw = NONE  # see _entries
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

ROUNDING = 1e-3  # by which a logprob may exceed 0
LOWEST = -1e6  # of a logprob: a softmax of float32 hardly has one below -1e3, and -1e308 would be infinite in float32
MOST_TOKENS = 1 << 31  # of a vocabulary whose size is unknown
SEPARATOR = ":"  # between the names of an adapter and of its tensor in a server's digests


class _Misfit(Exception):
    """Error of an answer in SGLang's form that does not fit its request."""


def refused(address: str, path: str, fault: str, data: bytes, remedy: str = USE_KNOWN_VERSION) -> ServerError:
    """Return the error of an answer that SGLang would not give."""
    start = one_line(text_of(data[:LONGEST_MESSAGE]), 80)
    return ServerError(
        f"{address} did not answer {path} as SGLang does ({one_line(fault, 100)}; the answer begins with {start!r}): it is not an SGLang "
        f"server, or of an unsupported version; {remedy}."
    )


@contextmanager
def _reading(address: str, path: str, data: bytes, remedy: str = USE_KNOWN_VERSION) -> Iterator[None]:
    """Raise ServerError where the block finds an answer of another form, or one that does not fit its request."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, _Misfit) as error:
        raise refused(address, path, str(error), data, remedy) from None


def completions_of(
    data: bytes,
    requests: Sequence[SamplingRequest],
    address: str,
    version: WeightVersion,
    vocabulary: int = MOST_TOKENS,
    *,
    may_be_aborted: bool = False,
) -> list[Completion]:
    """Return one completion per request, in order. `vocabulary`: the size of the model's. `may_be_aborted`: some were asked to end.

    Raises ServerError if the answer does not fit the requests, or has tokens that the model does not have.
    """
    with _reading(address, "/generate", data):
        completions = [
            _completion(*pair, address, version, may_be_aborted=may_be_aborted) for pair in _replies(data, requests)
        ]
        for completion in completions:  # no embedding has a row for other tokens
            largest = max((*completion.token_ids, *(ids[-1] for ids in completion.support)), default=0)
            if largest >= vocabulary:
                raise _Misfit(f"token {largest}, where the model has {vocabulary} tokens")
        return completions


def scores_of(
    data: bytes, requests: Sequence[ScoringRequest], address: str, version: WeightVersion
) -> list[tuple[float, ...]]:
    """Return the logprobs that each request asks for, in order. Raises ServerError if the answer does not fit the requests."""
    with _reading(address, "/generate", data):
        return [_scores(*pair, address, version) for pair in _replies(data, requests)]


def _replies(data: bytes, requests: Sequence[Request]) -> list[tuple[Reply, Request]]:
    replies = REPLIES.decode(data)
    if len(replies) != len(requests):
        raise _Misfit(f"{len(replies)} completions for {len(requests)} requests")
    return list(zip(replies, requests, strict=True))


def _entries(raw: msgspec.Raw) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Return the logprobs (NaN for null) and tokens of a list of (logprob, token, text).

    They are read as one flat list, since a list for each of millions of tokens takes twice as long. Brackets in a text, which is not
    read, go too.
    """
    flat: list[Any] = _FLAT.decode(b"[%b]" % bytes(raw).translate(None, b"[] \t\r\n"))
    values, tokens = flat[::3], flat[1::3]
    # Types first: beside a text, numpy would keep each number as a text of its length.
    are_typed = {*map(type, values)} <= {float, int, type(None)} and {*map(type, tokens)} <= {int}
    if len(flat) % 3 or not are_typed or (tokens and not 0 <= min(tokens) <= max(tokens) < 1 << 31):
        raise _Misfit("a list of logprobs has other entries than logprob, token and text")
    return np.array(values, np.float64), tuple(tokens)  # None is NaN


def _scores(reply: Reply, request: ScoringRequest, address: str, version: WeightVersion) -> tuple[float, ...]:
    about = reply.meta_info
    _require_finished(about, address)
    _require_made_by(about, address, version)
    if files_of(request):
        _require_expanded(reply, request.token_ids, request.pictures, address)
    logprobs, tokens = _entries(about.input_token_logprobs)
    logprobs, tokens = logprobs[1:], tokens[1:]  # the first is of the token before, and null
    expected = request.token_ids[request.first :]
    # SGLang writes 0 for the last token of the vocabulary.
    if len(tokens) != len(expected) or any(one not in (other, 0) for one, other in zip(tokens, expected, strict=True)):
        raise _Misfit("the logprobs belong to other tokens than the request's")
    return _logprobs(logprobs, address)


def _completion(
    reply: Reply, request: SamplingRequest, address: str, version: WeightVersion, *, may_be_aborted: bool
) -> Completion:
    about = reply.meta_info
    aborted = may_be_aborted and about.finish_reason.type == ABORTED
    if not aborted:
        _require_finished(about, address)
    _require_made_by(about, address, version)
    if files_of(request) and not aborted:
        _require_expanded(reply, request.input_ids, request.pictures, address)
    of_entries, tokens = _entries(about.output_token_logprobs)
    most = request.max_new_tokens
    least = 0 if aborted else min(1, most)
    if not least <= len(tokens) <= most:
        raise _Misfit(f"{len(tokens)} tokens, where the request asks for {least} to {most}")
    for place, (token, other) in enumerate(itertools.zip_longest(reply.output_ids, tokens)):
        if token != other:  # a policy would learn from shifted logprobs
            raise _Misfit(f"token {place} of a completion is {token}, and its logprob is of {other}")
    support: tuple[array[int], ...] = ()
    if request.support and tokens:
        support, logprobs = _support(about, tokens, request.top_k, address)
    else:
        logprobs = _logprobs(of_entries, address)
    count = written_length(tokens, request)
    return Completion(
        token_ids=tokens[:count],
        logprobs=logprobs[:count],
        finish_reason=about.finish_reason.type if count == len(tokens) else "stop",
        weight_version=version.name,
        cached_tokens=about.cached_tokens,
        support=support[:count],
    )


def _require_finished(about: About, address: str) -> None:
    reason = about.finish_reason
    if reason.type not in ("stop", "length"):
        message = one_line(str(reason.message or reason.type), LONGEST_MESSAGE)
        raise ServerError(f"{address} gave up a request: {message}")


def _require_made_by(about: About, address: str, version: WeightVersion) -> None:
    """Raise ServerError for a request that other weights than `version` have answered; ServerAway for one without weights."""
    versions = {about.weight_version, *(span.version for span in about.weight_versions or ())}
    if any(each.startswith(WITHOUT_WEIGHTS) for each in versions):
        raise ServerAway(f"{address} was started again, and holds no weights yet.")
    if versions != {version.sent}:
        raise ServerError(
            f"{address} answered with weights {one_line(str(sorted(versions)), LONGEST_MESSAGE)} instead of {version.sent!r}: another "
            "process updates this server; give each run its own server."
        )


def _require_expanded(reply: Reply, expected: tuple[int, ...], pictures: PromptPictures | None, address: str) -> None:
    """Raise ServerError if the server expands pictures to other numbers of tokens than training does."""
    prompt = reply.prompt_token_ids
    if tuple(prompt) == expected:
        return
    assert pictures is not None, "it has files"
    ours, theirs = (picture_lengths(ids, pictures.tokens) for ids in (expected, prompt))
    raise ServerError(
        f"{address} makes {one_line(str(list(theirs)), 80)} tokens of pictures that take {one_line(str(list(ours)), 80)} by the "
        "model's preprocessor_config.json, or reads the text between them in another way: start the server with "
        f"--image-processor-backend=pil, from a folder with the same preprocessor_config.json, and {USE_KNOWN_VERSION}."
    )


def _logprobs(values: NDArray[np.float64], address: str) -> tuple[float, ...]:
    """Return the logprobs. Raises ServerError if they are not finite: SGLang writes null for NaN, which is NaN again here."""
    if not np.isfinite(values).all():
        raise ServerError(f"{address} computed logprobs that are not finite: the weights are not finite.")
    smallest, largest = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if largest > ROUNDING or smallest < LOWEST:
        raise _Misfit(f"logprobs are {smallest} to {largest}, beyond {LOWEST:g} to 0")
    return tuple(values.tolist())


def _support(
    about: About, tokens: Sequence[int], most: int, address: str
) -> tuple[tuple[array[int], ...], tuple[float, ...]]:
    """Return each token's sampling mask, at most `most` token ids, and its logprob within it. [completion] both

    Raises ServerError if the server does not report them.
    """
    masks = about.output_token_sampling_mask
    if masks is None:
        raise ServerError(
            f"{address} reports no sampling masks (return_sampling_mask), without which rollout.top_p below 1 and rollout.top_k would "
            "bias the gradient: use SGLang 0.5.23 or newer there, or set rollout.top_p to 1.0 and rollout.top_k to -1."
        )
    logprobs = about.output_token_sampling_logprobs
    if not len(masks) == len(logprobs) == len(tokens):
        raise _Misfit(f"{len(masks)} sampling masks and {len(logprobs)} logprobs for {len(tokens)} tokens")
    support = tuple(array("i", sorted(ids)) for ids in masks)
    for token, ids in zip(tokens, support, strict=True):
        if token not in ids or len(set(ids)) != len(ids) or len(ids) > most:
            raise _Misfit(f"token {token} has a mask of {len(ids)} tokens that it cannot be sampled from")
    return support, _logprobs(np.array(logprobs, dtype=np.float64), address)


def digests_of(data: bytes, address: str) -> list[dict[str, str]]:
    """Return the digests of the tensors of each rank of a server, by name, [ranks].

    Raises ServerError if it does not report them, or divides its weights in another way than by tensor parallelism.
    """
    remedy = f"set training.gates.digest_mebibytes to 0, or {USE_KNOWN_VERSION}, without --dp-size and --pp-size"
    with _reading(address, "/weights_checker", data, remedy):
        ranks = DIGESTS.decode(data).ranks
        places = [rank.parallelism_info[0] for rank in ranks]
        known = [(place.tp_rank, place.tp_size, place.dp_size, place.pp_size) for place in places]
        if known != [(number, len(ranks), 1, 1) for number in range(len(ranks))]:
            raise _Misfit(f"its ranks are {known}")
        return [rank.checksums for rank in ranks]


def without_name(digests: Mapping[str, str], adapter: str | None, address: str) -> dict[str, str]:
    """Return the digests, with the adapter's name removed from those of its tensors.

    adapter None: digests of adapters left by an earlier run are dropped, as no request uses them. Raises ServerError if some belong to
    another adapter.
    """
    if adapter is None:
        return {name: digest for name, digest in digests.items() if SEPARATOR not in name}
    start = f"{adapter}{SEPARATOR}"
    foreign = next((name for name in digests if SEPARATOR in name and not name.startswith(start)), None)
    if foreign is not None:
        raise ServerError(
            f"{address} holds {one_line(foreign, LONGEST_MESSAGE)}, a tensor of an adapter that this run has not loaded: another process "
            "uses this server; give each run its own server."
        )
    return {name.removeprefix(start): digest for name, digest in digests.items()}


def adapters_of(data: bytes, path: str, address: str) -> set[str]:
    """Return the names of the adapters that a server holds after a change. Raises ServerError if it does not report them."""
    with _reading(address, path, data, f"{USE_KNOWN_VERSION}, or set training.lora.serving to merged"):
        return {*ADAPTERS.decode(data).loaded_adapters}
