"""A server that answers anything: each answer is a ServerError in a sentence, within the time and the bytes allowed."""

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.scripted import reply
from tests.hostile import anything
from tests.loopback import Handler, answering, hang, listening

from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine import http
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import Endpoint, message_of
from dagrpo.engine.interface import WITHOUT_WEIGHTS, WeightVersion, new_version
from dagrpo.engine.sglang.answers import completions_of, digests_of, scores_of
from dagrpo.engine.sglang.client import ServerClient

VERSION = WeightVersion(name="default", sent="default")
REQUEST = SamplingRequest(input_ids=(1,), seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=2)
ADDRESS = "http://127.0.0.1:9"
COMPRESSED = gzip.compress(b" " * (1 << 20))


def read(answer: Any) -> list[Completion]:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return completions_of(data, [REQUEST], ADDRESS, VERSION)


def changed(**about: Any) -> list[dict[str, Any]]:
    return [reply(1) | {"meta_info": reply(1)["meta_info"] | about}]


def without(name: str) -> list[dict[str, Any]]:
    return [reply(1) | {"meta_info": {key: value for key, value in reply(1)["meta_info"].items() if key != name}}]


def of_tokens(*entries: Any) -> list[dict[str, Any]]:
    ids = [entry[1] if len(entry) > 1 else None for entry in entries]
    return [each | {"output_ids": ids} for each in changed(output_token_logprobs=list(entries))]


CUT = replace(REQUEST, top_p=0.9, top_k=3, support=True)


def cut(vocabulary: int = 1 << 31, **about: Any) -> Completion:
    """What is made of an answer of two tokens, 7 and 8, whose support was asked for."""
    fields = {
        "output_token_logprobs": [[-2.5, 7, None], [-3.0, 8, None]],
        "output_token_sampling_mask": [[9, 7], [8]],
        "output_token_sampling_logprobs": [-0.5, 0.0],
    }
    (about_tokens,) = changed(**(fields | about))
    answer = json.dumps([about_tokens | {"output_ids": [7, 8]}]).encode()
    (completion,) = completions_of(answer, [CUT], ADDRESS, VERSION, vocabulary)
    return completion


def test_the_logprobs_of_what_was_cut_off_are_those_among_what_was_left() -> None:
    completion = cut()
    assert completion.logprobs == (-0.5, 0.0)
    assert [list(ids) for ids in completion.support] == [[7, 9], [8]]


def test_a_token_that_the_model_does_not_have_is_refused_sampled_or_in_a_mask() -> None:
    sampled = json.dumps(of_tokens([-0.5, 100, None])).encode()
    assert completions_of(sampled, [REQUEST], ADDRESS, VERSION, vocabulary=101)[0].token_ids == (100,)
    with pytest.raises(ServerError, match="token 100, where the model has 100 tokens"):
        completions_of(sampled, [REQUEST], ADDRESS, VERSION, vocabulary=100)
    with pytest.raises(ServerError, match="token 9, where the model has 9 tokens"):
        cut(vocabulary=9)


def aborted(request: SamplingRequest = REQUEST, *entries: list[Any], **about: Any) -> Completion:
    """What is made of the answer to an aborted request: tokens in `entries`."""
    reason = {"type": "abort", "message": "Aborted"}
    (answer,) = changed(**({"output_token_logprobs": list(entries), "finish_reason": reason} | about))
    data = json.dumps([answer | {"output_ids": [entry[1] for entry in entries]}]).encode()
    (completion,) = completions_of(data, [request], ADDRESS, VERSION, may_be_aborted=True)
    return completion


def test_an_aborted_request_has_the_tokens_that_were_sampled_or_none_if_it_was_waiting() -> None:
    part = aborted(REQUEST, [-0.5, 7, None])
    assert (part.token_ids, part.logprobs, part.finish_reason) == ((7,), (-0.5,), "abort")
    assert aborted().token_ids == ()
    assert aborted(CUT, output_token_sampling_mask=None).support == (), "it has none yet"
    masked = aborted(CUT, [-2.5, 7, None], output_token_sampling_mask=[[9, 7]], output_token_sampling_logprobs=[-0.5])
    assert (masked.logprobs, [list(ids) for ids in masked.support]) == ((-0.5,), [[7, 9]])
    finished = aborted(REQUEST, [-0.5, 7, None], finish_reason={"type": "stop"})
    assert finished.finish_reason == "stop", "it has ended before it could be aborted"


ASKED = ScoringRequest(token_ids=(5, 7, 8), first=1)


def scored(**about: Any) -> tuple[float, ...]:
    """What is made of the logprobs of 7 and 8."""
    fields = {"input_token_logprobs": [[None, 5, None], [-0.5, 7, None], [-0.25, 8, None]]}
    (result,) = scores_of(json.dumps(changed(**(fields | about))).encode(), [ASKED], ADDRESS, VERSION)
    return result


def test_scores_are_those_of_the_tokens_that_were_asked_for() -> None:
    assert scored() == (-0.5, -0.25)
    last_of_the_vocabulary = [[None, 5, None], [-0.5, 7, None], [-0.25, 0, None]]
    assert scored(input_token_logprobs=last_of_the_vocabulary) == (-0.5, -0.25)


def test_an_answer_without_weights_is_that_of_a_server_which_was_started_again() -> None:
    with pytest.raises(ServerAway, match="was started again"):
        scored(weight_version=new_version(WITHOUT_WEIGHTS).sent, weight_versions=None)


@given(anything)
def test_whatever_is_answered_for_scores_is_a_sentence(answer: Any) -> None:
    with pytest.raises(ServerError) as caught:
        scores_of(json.dumps(answer).encode(), [ASKED], ADDRESS, VERSION)
    assert len(str(caught.value)) < 500


def test_a_whole_answer_is_read() -> None:
    (completion,) = read(of_tokens([-0.5, 7, None], [0, 8, "x"]))
    assert (completion.token_ids, completion.logprobs) == ((7, 8), (-0.5, 0.0))


def test_digests_are_read_and_anything_else_is_a_sentence() -> None:
    def of_rank(rank: int, size: int, digest: str, replicas: int = 1) -> dict[str, Any]:
        place = {"tp_rank": rank, "tp_size": size, "dp_size": replicas, "pp_size": 1}
        return {"checksums": {"model.norm.weight": digest}, "parallelism_info": [place]}

    told = {"success": True, "ranks": [of_rank(0, 2, "00ff"), of_rank(1, 2, "00fe")]}
    assert digests_of(json.dumps(told).encode(), ADDRESS) == [
        {"model.norm.weight": "00ff"},
        {"model.norm.weight": "00fe"},
    ]
    for answer in (
        b'{"ranks": []}',
        json.dumps({"ranks": [{"checksums": {"model.norm.weight": "00ff"}}]}).encode(),
        json.dumps({"ranks": [of_rank(0, 1, "00ff"), of_rank(0, 1, "00ff")]}).encode(),
        json.dumps({"ranks": [of_rank(0, 2, "00ff")]}).encode(),
        json.dumps({"ranks": [of_rank(0, 1, "00ff", replicas=2)]}).encode(),
    ):
        with pytest.raises(
            ServerError, match=r"did not answer /weights_checker as SGLang does .*digest_mebibytes to 0"
        ):
            digests_of(answer, ADDRESS)


def misplaced(*output_ids: int) -> list[dict[str, Any]]:
    """An answer whose logprobs are of 7 and 8."""
    (answer,) = of_tokens([-0.5, 7, None], [-0.25, 8, None])
    return [answer | {"output_ids": output_ids}]


ONE = [-0.5, 7, None]
NO_ANSWER = "did not answer /generate as SGLang does"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: cut(output_token_sampling_mask=None), "reports no sampling masks"),
        (lambda: cut(output_token_sampling_mask=[[7]]), "1 sampling masks and 2 logprobs for 2 tokens"),
        (lambda: cut(output_token_sampling_mask=[[7], [9]]), "token 8 has a mask of 1 tokens"),
        (lambda: cut(output_token_sampling_mask=[[7, 7], [8]]), "token 7 has a mask of 2 tokens"),
        (lambda: cut(output_token_sampling_mask=[[1, 2, 3, 7], [8]]), "token 7 has a mask of 4 tokens"),
        (lambda: cut(output_token_sampling_mask=[[7, -1], [8]]), "Expected `int` >= 0"),
        (lambda: cut(output_token_sampling_logprobs=[0.5, 0.0]), "logprobs are 0.0 to 0.5, beyond"),
        (lambda: cut(output_token_sampling_logprobs=[None, 0.0]), "the weights are not finite"),
        (lambda: cut(output_token_sampling_logprobs=[-1e308, 0.0]), "logprobs are -1e+308 to 0.0, beyond -1e+06 to 0"),
        (lambda: aborted(REQUEST, *[ONE] * 3), "3 tokens, where the request asks for 0 to 2"),
        (lambda: aborted(REQUEST, [None, 7, None]), "the weights are not finite"),
        (lambda: aborted(REQUEST, ONE, weight_version="another"), "another process updates this server"),
        (lambda: aborted(finish_reason={"type": "stop"}), "0 tokens, where the request asks for 1 to 2"),
        (lambda: aborted(REQUEST, ONE, output_token_logprobs=[]), "token 0 of a completion is 7, and its logprob is of None"),
        (lambda: scored(input_token_logprobs=[[None, 5, None], ONE]), "belong to other tokens than the request's"),
        (lambda: scored(input_token_logprobs=[[None, 7, None], [-0.5, 8, None], [-1.0, 9, None]]), "to other tokens"),
        (lambda: scored(input_token_logprobs=[[None, 5, None], [None, 7, None], [-1.0, 8, None]]), "are not finite"),
        (lambda: scored(input_token_logprobs=[[None, 5, None], [0.5, 7, None], [-1.0, 8, None]]), "to 0.5, beyond"),
        (lambda: scored(input_token_logprobs=[[None, 5, None], [-0.5, -7, None]]), "other entries than logprob"),
        (lambda: scored(weight_version="another", weight_versions=None), "another process updates this server"),
        (lambda: scored(finish_reason={"type": "abort", "message": "too long"}), "gave up a request: too long"),
        (lambda: read(misplaced(8, 9)), "token 0 of a completion is 8, and its logprob is of 7"),  # shifted by one
        (lambda: read(misplaced(7)), "token 1 of a completion is None, and its logprob is of 8"),
        (lambda: read(misplaced(7, 8, 9)), "token 2 of a completion is 9, and its logprob is of None"),
        (lambda: read(b""), NO_ANSWER),
        (lambda: read(b"<html>"), "the answer begins with '<html>'"),
        (lambda: read([]), NO_ANSWER),
        (lambda: read([reply(1), reply(1)]), NO_ANSWER),
        (lambda: read([{}]), f"{NO_ANSWER} (Object missing required field `meta_info`"),
        (lambda: read(without("finish_reason")), NO_ANSWER),
        (lambda: read(changed(finish_reason={"type": "abort"})), "gave up a request: abort"),
        (lambda: read(of_tokens()), "0 tokens, where the request asks for 1 to 2"),
        (lambda: read(of_tokens(*[[-0.1, 1, None]] * 3)), "3 tokens, where the request asks for 1 to 2"),
        (lambda: read(of_tokens([5.0, 1, None])), "to 5.0, beyond"),
        (lambda: read(of_tokens([-0.1, -1, None])), NO_ANSWER),
        (lambda: read(of_tokens([-0.1, 10**30, None])), NO_ANSWER),
        (lambda: read(of_tokens([-(10**400), 1, None])), NO_ANSWER),
        (lambda: read(of_tokens([-0.1, "1" * 1_000_000, None], *[[-0.1, 1, None]] * 100_000)), NO_ANSWER),
        (lambda: read(of_tokens([None, 1, "[ ]"])), "the weights are not finite"),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_sglangs_to_the_request_is_one_sentence(ask: Callable[[], object], words: str) -> None:
    with pytest.raises(ServerError) as caught:
        ask()
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


FIELDS = st.sampled_from([*reply(1)["meta_info"], "cached_tokens"])


@given(
    answer=st.binary(max_size=50)
    | anything
    | st.dictionaries(FIELDS, anything, min_size=1).map(lambda fields: changed(**fields))
)
def test_any_answer_is_completions_or_one_sentence(answer: Any) -> None:
    try:
        completions = read(answer)
    except ServerError as refusal:
        sentence = str(refusal)
    else:
        (completion,) = completions
        assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= REQUEST.max_new_tokens
        return
    assert len(sentence) < 500


@given(data=st.binary(max_size=50) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_refusal_is_told_on_one_line(data: bytes) -> None:
    assert 0 < len(message_of(data)) <= 300
    assert message_of(data).isprintable()


def asked(handler: Handler, timeout: float = 5.0) -> list[Completion]:
    """What a client makes of a server that answers like this."""

    async def ask() -> list[Completion]:
        async with listening(answering("/generate", handler)) as address:
            client = ServerClient(Endpoint(address=address), timeout)
            try:
                return await asyncio.wait_for(client.generate([REQUEST], VERSION), 20)
            finally:
                await client.close()

    return asyncio.run(ask())


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" " * (1 << 20))


async def drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(600):
        await answer.write(b" ")
        await asyncio.sleep(0.05)
    return answer


async def compressed(request: web.Request) -> web.StreamResponse:
    return web.Response(body=COMPRESSED, headers={"Content-Encoding": "gzip"})


async def redirecting(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(request.path)


async def refusing_at_length(request: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "\x1b[31m" + "no " * 100_000}, status=500)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (endless, "answered with more than 4,194,304 bytes"),
        (drip, "made no progress for 0.5 s"),
        (hang, "made no progress for 0.5 s"),
        (compressed, "did not answer /generate as SGLang does"),
        (redirecting, "refused /generate (302)"),
        (refusing_at_length, r"refused /generate (500): \u001b[31mno no no"),
    ],
    ids=["endless", "drip", "hang", "compressed", "redirecting", "refusing_at_length"],
)
def test_a_hostile_server_costs_neither_time_nor_memory(
    handler: Handler, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_BYTES_ELSEWHERE", 4 << 20)
    with pytest.raises(ServerError) as caught:
        asked(handler, timeout=0.5 if handler in (drip, hang) else 10.0)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_server_that_closes_connections_at_their_reuse_is_asked_on_new_ones() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (json.dumps([reply(1)]).encode(), b""):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            if answer:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(once, "127.0.0.1", 0) as server:
            client = ServerClient(Endpoint(address=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), 20)
            try:
                for count in (4, 1):
                    await asyncio.gather(*(client.generate([REQUEST], VERSION) for _ in range(count)))
            finally:
                await client.close()

    asyncio.run(ask())


@pytest.mark.parametrize("address", ["http://[::1", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none_is_one_sentence(address: str) -> None:
    async def ask() -> None:
        client = ServerClient(Endpoint(address=address), 0.5)
        try:
            await client.empty_cache()
        finally:
            await client.close()

    with pytest.raises(ServerError, match="cannot be reached"):
        asyncio.run(ask())


@pytest.mark.parametrize("item", [b"0", b'{"meta_info": 1}'])
def test_a_long_answer_of_another_form_takes_no_memory_for_each_of_its_mistakes(item: bytes) -> None:
    """Pydantic would keep thousands of bytes for each."""
    data = b"[" + b",".join([item] * 100_000) + b"]"
    tracemalloc.start()
    try:
        with pytest.raises(ServerError, match="did not answer /generate as SGLang does"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(data)
    finally:
        tracemalloc.stop()
