"""Parse and check an SGLang server's answers before they are used.

A server may run elsewhere, be of another version, or be no SGLang server at all.
"""

from __future__ import annotations

import itertools
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dagrpo.core.escape import one_line
from dagrpo.core.image_tokens import picture_lengths
from dagrpo.core.types import Completion, PromptPictures, SamplingRequest, ScoringRequest
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.sglang.images import files_of, written_length

ABOUT_A_TOKEN = 256  # bytes of an answer, generously: its logprob, its number, its text
ABOUT_AN_ID = 16  # bytes of a token's number in a list
ABOUT_A_REQUEST = 1 << 16
ABOUT_AN_ANSWER = 1 << 20
MOST_DIGESTS = 1 << 27  # bytes: a digest of a tensor and its name, of a million tensors
LONGEST_MESSAGE = 300  # characters of what a server says
ROUNDING = 1e-3  # by which a logprob may exceed 0
SEPARATOR = ":"  # between the names of an adapter and of its tensor, where a server tells digests


def largest_answer(requests: Sequence[SamplingRequest]) -> int:
    """Return the largest size in bytes of the answer to these requests."""
    tokens = sum(request.max_new_tokens for request in requests)
    ids = sum(request.max_new_tokens * request.top_k for request in requests if request.support)
    ids += sum(len(request.input_ids) for request in requests) if any(map(files_of, requests)) else 0
    return ABOUT_AN_ANSWER + len(requests) * ABOUT_A_REQUEST + tokens * ABOUT_A_TOKEN + ids * ABOUT_AN_ID


def largest_scores(requests: Sequence[ScoringRequest]) -> int:
    """Return the largest size in bytes of the answer to requests for logprobs."""
    tokens = sum(len(request.token_ids) - request.first + 1 for request in requests)
    ids = sum(len(request.token_ids) for request in requests) if any(map(files_of, requests)) else 0
    return ABOUT_AN_ANSWER + len(requests) * ABOUT_A_REQUEST + tokens * ABOUT_A_TOKEN + ids * ABOUT_AN_ID


def completions_of(
    data: bytes, requests: Sequence[SamplingRequest], address: str, version: WeightVersion
) -> list[Completion]:
    """Return one completion per request, in order. Raises ServerError if the answer does not fit the requests."""
    pairs = zip(_replies(data, len(requests), address), requests, strict=True)
    with _of_a_known_form(address):
        return [_completion(reply, request, address, version) for reply, request in pairs]


def tokens_written(data: bytes) -> int:
    """Return the number of tokens in an answer to aborted requests, 0 for missing counts. The tokens are counted, and never used."""
    try:
        replies = json.loads(data)
    except (ValueError, RecursionError):
        return 0
    about = (
        [reply.get("meta_info") for reply in replies if isinstance(reply, dict)] if isinstance(replies, list) else []
    )
    counts = [each.get("completion_tokens") for each in about if isinstance(each, dict)]
    return sum(count for count in counts if type(count) is int and count > 0)


def scores_of(
    data: bytes, requests: Sequence[ScoringRequest], address: str, version: WeightVersion
) -> list[tuple[float, ...]]:
    """Return the logprobs that each request asks for, in order. Raises ServerError if the answer does not fit the requests."""
    pairs = zip(_replies(data, len(requests), address), requests, strict=True)
    with _of_a_known_form(address):
        return [_scores(reply, request, address, version) for reply, request in pairs]


def _replies(data: bytes, count: int, address: str) -> list[Any]:
    """Return one reply for each of `count` requests. Raises ServerError if the answer is not a list of that length."""
    try:
        replies = json.loads(data)
    except (ValueError, RecursionError):
        replies = None
    if not isinstance(replies, list) or len(replies) != count:
        raise ServerError(
            f"{address} did not answer /generate with one completion for each of {count} requests "
            f"({one_line(_text(data[:LONGEST_MESSAGE]), 80)}): it is no SGLang server, or of a version that is not known here."
        )
    return replies


@contextmanager
def _of_a_known_form(address: str) -> Iterator[None]:
    """Raise ServerError in place of errors from a reply that has not SGLang's form."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, _OfAnotherShape) as error:
        raise ServerError(
            f"{address} answered /generate in another form than SGLang does ({type(error).__name__}: "
            f"{one_line(str(error), 100)}): it is of a version that is not known here."
        ) from None


def _scores(reply: Any, request: ScoringRequest, address: str, version: WeightVersion) -> tuple[float, ...]:
    """Return the logprobs of a reply. Raises ServerError if it was aborted, has no logprobs, or comes from other weights."""
    about = reply["meta_info"]
    _require_finished(about["finish_reason"], address)
    _require_version(about, address, version)
    if files_of(request):
        _require_expanded(reply["prompt_token_ids"], request.token_ids, request.pictures, address)
    entries = about["input_token_logprobs"][1:]  # the first is of the token before, and null
    told = [_whole(entry[1]) for entry in entries]
    asked = request.token_ids[request.first :]
    # SGLang writes 0 for the last token of the vocabulary.
    if len(told) != len(asked) or any(one not in (other, 0) for one, other in zip(told, asked, strict=True)):
        raise _OfAnotherShape("the logprobs are not of the tokens that were asked for")
    return _logprobs([entry[0] for entry in entries], address)


def _completion(reply: Any, request: SamplingRequest, address: str, version: WeightVersion) -> Completion:
    """Return the completion of a reply. Raises ServerError if it was aborted, has no logprobs, or comes from other weights."""
    about = reply["meta_info"]
    reason = about["finish_reason"]
    _require_finished(reason, address)
    _require_version(about, address, version)
    if files_of(request):
        _require_expanded(reply["prompt_token_ids"], request.input_ids, request.pictures, address)
    tokens, logprobs = _tokens(about["output_token_logprobs"], request.max_new_tokens, address)
    _require_matched(tokens, reply["output_ids"], address)
    support: tuple[array[int], ...] = ()
    if request.support:
        support, logprobs = _support(about, tokens, request.top_k, address)
    cached = _whole(about.get("cached_tokens", 0))
    counts = written_length(tokens, request)
    return Completion(
        token_ids=tokens[:counts],
        logprobs=logprobs[:counts],
        finish_reason=reason["type"] if counts == len(tokens) else "length",
        weight_version=version.name,
        cached_tokens=cached,
        support=support[:counts],
    )


class _OfAnotherShape(Exception):
    """Error of a value that is not of the expected kind."""


def _require_finished(reason: Mapping[str, Any], address: str) -> None:
    if reason["type"] not in ("stop", "length"):
        said = str(reason.get("message", reason["type"]))
        raise ServerError(f"{address} gave up a request: {one_line(said, LONGEST_MESSAGE)}")


def _require_version(about: Mapping[str, Any], address: str, version: WeightVersion) -> None:
    versions = {str(about["weight_version"]), *(str(span["version"]) for span in about.get("weight_versions") or ())}
    if versions != {version.sent}:
        raise ServerError(
            f"{address} answered with weights {one_line(str(sorted(versions)), LONGEST_MESSAGE)} instead of "
            f"{version.sent!r}: somebody else updates this server; give each run a server of its own."
        )


def _require_expanded(prompt: Any, expected: tuple[int, ...], pictures: PromptPictures | None, address: str) -> None:
    """Raise ServerError if the server expands pictures to other numbers of tokens than training does."""
    if not isinstance(prompt, list):
        raise _OfAnotherShape(f"{type(prompt).__name__} is no list of a prompt's tokens")
    if tuple(prompt) == expected:
        return
    assert pictures is not None, "it has files"
    ours, theirs = (picture_lengths(ids, pictures.tokens) for ids in (expected, prompt))
    raise ServerError(
        f"{address} makes {one_line(str(list(theirs)), 80)} tokens of pictures that take {one_line(str(list(ours)), 80)} by the "
        "model's preprocessor_config.json, or reads the text between them in another way: start the server with "
        "--image-processor-backend=pil, from a folder with the same preprocessor_config.json, and use the version of SGLang "
        "that requirements/ names."
    )


def _tokens(entries: Any, most: int, address: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return token ids and their logprobs, of entries [logprob, token, text]."""
    if not isinstance(entries, list) or not min(1, most) <= len(entries) <= most:
        raise _OfAnotherShape(f"between {min(1, most)} and {most} tokens were asked for")
    logprobs = _logprobs([entry[0] for entry in entries], address)
    return tuple(_whole(entry[1]) for entry in entries), logprobs


def _logprobs(logprobs: Sequence[Any], address: str) -> tuple[float, ...]:
    """Return the logprobs. Raises ServerError if they are not finite."""
    if not all(_is_finite(logprob) for logprob in logprobs):
        raise ServerError(f"{address} computed logprobs that are no numbers: the weights are not finite.")
    if max(logprobs, default=0.0) > ROUNDING:
        raise _OfAnotherShape(f"{max(logprobs)} is no logprob")
    return tuple(float(logprob) for logprob in logprobs)


def _support(
    about: Mapping[str, Any], tokens: Sequence[int], most: int, address: str
) -> tuple[tuple[array[int], ...], tuple[float, ...]]:
    """Return each token's sampling mask, at most `most` token ids, and its logprob within it. [completion] both

    Raises ServerError if the server does not report them.
    """
    if about.get("output_token_sampling_mask") is None:
        raise ServerError(
            f"{address} does not say which tokens each one was drawn from (return_sampling_mask), without which rollout.top_p "
            "below 1 and rollout.top_k would bias what is learned: use SGLang 0.5.23 or newer there, or set rollout.top_p to "
            "1.0 and rollout.top_k to -1."
        )
    support = tuple(array("i", sorted(map(_whole, ids))) for ids in about["output_token_sampling_mask"])
    logprobs = about["output_token_sampling_logprobs"]
    if not len(support) == len(logprobs) == len(tokens):
        raise _OfAnotherShape(f"{len(support)} supports and {len(logprobs)} logprobs for {len(tokens)} tokens")
    for token, ids in zip(tokens, support, strict=True):
        if token not in ids or len(set(ids)) != len(ids) or len(ids) > most:
            raise _OfAnotherShape(f"token {token} was not drawn from {len(ids)} tokens that are no support of it")
    return support, _logprobs(logprobs, address)


def _require_matched(of_logprobs: tuple[int, ...], sampled: Any, address: str) -> None:
    """Raise ServerError if the logprobs belong to other tokens than those that were sampled, position by position."""
    if not isinstance(sampled, list):
        raise _OfAnotherShape(f"{sampled!r} is no list of tokens")
    if list(of_logprobs) != sampled:
        pairs = itertools.zip_longest(sampled, of_logprobs)
        position, (token, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ServerError(
            f"{address} gave logprobs that are not of the tokens it sampled: token {position} of a completion is "
            f"{one_line(repr(token), 40)}, and its logprob is of {other}: a policy would learn from shifted logprobs. Use "
            "the version of SGLang that requirements/ names."
        )


def digests_of(data: bytes, address: str) -> list[dict[str, str]]:
    """Return the digests of the tensors of each rank of a server, by name, [ranks].

    Raises ServerError if it does not report them, or divides its weights in another way than by tensor parallelism.
    """
    try:
        ranks = json.loads(data)["ranks"]
        places = [rank["parallelism_info"][0] for rank in ranks]  # of the model; a draft model's would follow
        known = [(place["tp_rank"], place["tp_size"], place["dp_size"], place["pp_size"]) for place in places]
        if not ranks or known != [(number, len(ranks), 1, 1) for number in range(len(ranks))]:
            raise ValueError
        return [{str(name): str(digest) for name, digest in rank["checksums"].items()} for rank in ranks]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ServerError(
            f"{address} did not answer /weights_checker with the digests of the tensors of each rank "
            f"({one_line(_text(data[:LONGEST_MESSAGE]), 80)}): set training.gates.digest_mebibytes to 0, or use the version "
            "of SGLang that requirements/ names, without --dp-size and --pp-size."
        ) from None


def without_name(told: Mapping[str, str], adapter: str | None, address: str) -> dict[str, str]:
    """Return the digests, with the adapter's name removed from those of its tensors.

    adapter None: digests of adapters left by an earlier run are dropped, as no request uses them. Raises ServerError if some belong to
    another adapter.
    """
    if adapter is None:
        return {name: digest for name, digest in told.items() if SEPARATOR not in name}
    start = f"{adapter}{SEPARATOR}"
    foreign = next((name for name in told if SEPARATOR in name and not name.startswith(start)), None)
    if foreign is not None:
        raise ServerError(
            f"{address} holds {one_line(foreign, LONGEST_MESSAGE)}, which is of no adapter that this run has handed over: somebody else "
            "uses this server; give each run a server of its own."
        )
    return {name.removeprefix(start): digest for name, digest in told.items()}


def adapters_of(data: bytes, path: str, address: str) -> set[str]:
    """Return the names of the adapters that a server holds after a change. Raises ServerError if it does not report them."""
    try:
        return {str(name) for name in dict(json.loads(data)["loaded_adapters"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ServerError(
            f"{address} did not answer {path} with the adapters that it holds ({one_line(_text(data[:LONGEST_MESSAGE]), 80)}): use the "
            "version of SGLang that requirements/ names, or set training.lora.serving to merged."
        ) from None


def _is_finite(logprob: Any) -> bool:
    """Return True if a logprob is a finite number. None stands for NaN, which JSON does not have."""
    if logprob is None:
        return False
    if isinstance(logprob, bool) or not isinstance(logprob, int | float):
        raise _OfAnotherShape(f"{logprob!r} is no logprob")
    return isinstance(logprob, int) or math.isfinite(logprob)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise _OfAnotherShape(f"{value!r} is no number of a token, nor of tokens")
    return value


def message_of(data: bytes) -> str:
    """Return the message of a refusal on one line.

    Forms: {"message": ...}, {"error": {"message": ...}}, {"error_message": ...}, or plain text.
    """
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = _text(data)
    while isinstance(answer, dict):
        answer = answer.get("message") or answer.get("error") or answer.get("error_message") or json.dumps(answer)
    return one_line(str(answer), LONGEST_MESSAGE) or "it does not say why"


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()
