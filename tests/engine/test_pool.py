"""The engine against scripted servers: what it sends, what it makes of the answers."""

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.conftest import MakePool, Serve
from tests.engine.scripted import Echo, Hangup, ScriptedServer, reply, scores

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.types import SamplingRequest, ScoringRequest
from dagrpo.engine.errors import ServerError, ServerGone, ServerLost
from dagrpo.engine.http import Endpoint
from dagrpo.engine.pool import SLICES_IN_FLIGHT, split
from dagrpo.engine.sessions import SLICE

WEIGHTS = StateTensors({"w": torch.ones(2)})
FLUSH = "/flush_cache?timeout=10.0"


def at(server: ScriptedServer, **about: Any) -> Endpoint:
    return Endpoint(address=server.address, **about)


def request(*tokens: int, seed: int = 0) -> SamplingRequest:
    return SamplingRequest(input_ids=tokens, seed=seed, temperature=0.7, top_p=0.9, top_k=-1, max_new_tokens=4)


def test_a_lockstep_batch_goes_to_an_empty_server_as_one_http_request(serve: Serve, pool_of: MakePool) -> None:
    server = serve()
    completions = pool_of(at(server)).generate([request(1, 2, seed=5), request(3)], lockstep=True)
    assert [completion.token_ids for completion in completions] == [(2,), (3,)]
    assert (completions[0].logprobs, completions[0].finish_reason) == ((-0.2,), "length")
    assert server.paths == [FLUSH, "/generate"]
    body = server.asked[1][1]
    assert (body["input_ids"], body["return_logprob"]) == ([[1, 2], [3]], True)
    assert body["sampling_params"][0] == {
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "max_new_tokens": 4, "sampling_seed": 5,
    }  # fmt: skip


def test_prompts_with_several_samples_are_read_once_before(serve: Serve, pool_of: MakePool) -> None:
    server = serve(Echo(_scoring))
    pool_of(at(server)).generate([*(request(1, 2, seed=seed) for seed in range(3)), request(9)], lockstep=False)
    pool_of(at(server)).score([ScoringRequest(token_ids=(1, 2, token), first=2) for token in (7, 8)], lockstep=False)
    shared = ("/generate", {"input_ids": [[1, 2]], "sampling_params": {"max_new_tokens": 0}})
    assert server.asked[0] == server.asked[2] == shared
    assert [len(server.asked[place][1]["input_ids"]) for place in (1, 3)] == [4, 2]


def _scoring(body: dict[str, Any]) -> tuple[int, Any]:
    is_to_score = isinstance(body.get("logprob_start_len"), list)
    return 200, scores(body) if is_to_score else [reply(prompt[-1]) for prompt in body["input_ids"]]


def test_tokens_are_scored_from_the_place_that_is_asked_for_on_an_empty_server(serve: Serve, pool_of: MakePool) -> None:
    server = serve(Echo(_scoring))
    asked = [ScoringRequest(token_ids=(1, 2, 3, 4), first=2), ScoringRequest(token_ids=(5, 6), first=1)]
    assert pool_of(at(server)).score(asked, lockstep=True) == [(-0.1 * 3, -0.1 * 4), (-0.1 * 6,)]
    assert server.paths == [FLUSH, "/generate"]
    body = server.asked[1][1]
    assert (body["input_ids"], body["logprob_start_len"]) == ([[1, 2, 3, 4], [5, 6]], [1, 0])
    assert body["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}


def test_new_weights_leave_an_empty_cache_and_are_named_in_what_they_wrote(serve: Serve, pool_of: MakePool) -> None:
    servers = [serve(), serve()]
    pool = pool_of(*map(at, servers))
    pool.load(WEIGHTS, "step_1")
    completions = pool.generate([request(1), request(2)], lockstep=True)
    assert {completion.weight_version for completion in completions} == {"step_1"}
    for server in servers:
        assert server.paths == ["/update_weights_from_disk", FLUSH, "/generate"]
        body = server.asked[0][1]
        assert (Path(body["model_path"]) / "model.safetensors").is_file()
        assert body["flush_cache"] is False  # it would be refused while a request is taken for one at work


def test_weights_of_the_same_name_that_somebody_else_loaded_are_noticed(serve: Serve, pool_of: MakePool) -> None:
    server = serve()
    ours, theirs = pool_of(at(server)), pool_of(at(server))
    ours.load(WEIGHTS, "step_1")
    theirs.load(WEIGHTS, "step_1")
    with pytest.raises(ServerError, match=r"answered with weights \['step_1-\w+'\] instead of 'step_1-\w+'"):
        ours.generate([request(1)], lockstep=True)
    assert theirs.generate([request(1)], lockstep=True)[0].token_ids == (1,)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 3 * SLICE + 5])
def test_completions_come_back_in_order_whatever_server_made_them(
    serve: Serve, pool_of: MakePool, lockstep: bool, number: int
) -> None:
    pool = pool_of(at(serve()), at(serve()), at(serve()))
    completions = pool.generate([request(token) for token in range(number)], lockstep=lockstep)
    assert [completion.token_ids for completion in completions] == [(token,) for token in range(number)]


def test_an_attempt_stays_with_its_server_however_few_of_its_batch_go_on() -> None:
    assert split([0, 1, 4, 5], [0, 1], lockstep=True) == [(0, [0, 2]), (1, [1, 3])]
    assert split([3], [0, 1], lockstep=True) == [(1, [0])]


def test_the_cache_is_emptied_before_the_first_wave_of_a_batch_and_kept_between_the_others(
    serve: Serve, pool_of: MakePool
) -> None:
    server = serve()
    pool = pool_of(at(server))
    pool.generate([request(1), request(2)], lockstep=True)
    pool.generate([request(2)], lockstep=True, places=[1], first_wave=False)
    pool.generate([request(3)], lockstep=True)
    asyncio.run(pool.complete(request(1), session="a"))
    pool.generate([request(1)], lockstep=True)
    assert server.paths == [FLUSH, "/generate", "/generate", *[FLUSH, "/generate", "/generate"], FLUSH, "/generate"]


DEATH = "The SGLang server died (killed by signal 9): log.txt"


@pytest.mark.parametrize(("death", "told"), [(None, "cannot be reached"), (DEATH, "killed by signal 9")])
def test_when_one_of_several_servers_dies_its_sessions_go_on_at_the_others(
    serve: Serve, pool_of: MakePool, death: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its death is known or not."""
    monkeypatch.setattr("dagrpo.engine.http.DIAGNOSIS_SECONDS", 0.2)
    alive, dying = serve(), serve()
    pool = pool_of(at(alive), at(dying, diagnose=lambda: death))
    dying.stop()

    async def converse() -> None:
        assert (await pool.complete(request(1), session="a")).token_ids == (1,)
        with pytest.raises(ServerGone, match=told):
            await pool.complete(request(2), session="b")
        assert (await pool.complete(request(2), session="b")).token_ids == (2,)

    asyncio.run(converse())
    pool.load(WEIGHTS, "step_1")
    assert [completion.token_ids for completion in pool.generate([request(1), request(2)], lockstep=True)] == [
        (1,),
        (2,),
    ]


def test_slices_of_a_server_that_dies_are_spread_over_the_others(serve: Serve, pool_of: MakePool) -> None:
    dying, others = serve(), [serve(), serve()]
    pool = pool_of(at(dying, diagnose=lambda: DEATH), *map(at, others))
    dying.stop()
    batch = [request(token) for token in range(6 * SLICE)]
    assert [each.token_ids for each in pool.generate(batch, lockstep=False)] == [(token,) for token in range(6 * SLICE)]
    assert [len(server.asked) for server in others] == [3, 3], "two slices each, and one of the two of the dead one"


def test_a_server_gets_no_more_slices_at_a_time_than_can_be_spread_where_it_dies(
    serve: Serve, pool_of: MakePool
) -> None:
    most, lock, all_are_there, now, seen = SLICES_IN_FLIGHT, threading.Lock(), threading.Event(), 0, 0

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal now, seen
        with lock:
            now, seen = now + 1, max(seen, now + 1)
        if seen >= most:
            all_are_there.set()
        all_are_there.wait(20)
        time.sleep(0.1)  # in which one more would come
        with lock:
            now -= 1
        return 200, [reply(prompt[-1]) for prompt in body["input_ids"]]

    pool_of(at(serve(Echo(answer))), timeout=60).generate([request(1)] * (most + 1) * SLICE, lockstep=False)
    assert seen == most


class Digested(Echo):
    """Server of one rank that also reports the digest of its only tensor."""

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        place = {"tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1}
        if path == "/weights_checker":
            return 200, {"ranks": [{"checksums": {"w": "ab"}, "parallelism_info": [place]}]}
        return super().__call__(path, body)


@pytest.mark.parametrize("call", ["release_memory", "digests"])
def test_a_server_that_dies_between_two_steps_is_left_out(serve: Serve, pool_of: MakePool, call: str) -> None:
    dying = serve()
    pool = pool_of(at(serve(Digested())), at(dying, diagnose=lambda: DEATH))
    pool._leaves = True
    dying.stop()
    held = getattr(pool, call)()
    assert held is None or len(held) == 1
    pool.load(WEIGHTS, "step_1")
    assert [each.token_ids for each in pool.generate([request(1), request(2)], lockstep=True)] == [(1,), (2,)]


def test_where_all_servers_are_needed_the_death_of_one_starts_the_stage_again(serve: Serve, pool_of: MakePool) -> None:
    dying = serve()
    pool = pool_of(at(serve()), at(dying, diagnose=lambda: DEATH), keeps_all=True)
    dying.stop()

    async def converse() -> None:
        assert (await pool.complete(request(1), session="a")).token_ids == (1,)
        await pool.complete(request(2), session="b")

    with pytest.raises(ServerLost, match="killed by signal 9"):
        asyncio.run(converse())


def test_a_session_stays_on_its_server_and_sessions_are_spread(serve: Serve, pool_of: MakePool) -> None:
    servers = [serve(), serve()]
    pool = pool_of(*map(at, servers))

    async def converse() -> None:
        for turn in range(3):
            works = [pool.complete(request(session, turn), session=str(session)) for session in range(4)]
            completions = await asyncio.gather(*works)
            assert [completion.token_ids for completion in completions] == [(turn,)] * 4

    asyncio.run(converse())
    sessions = [sorted(ids[0] for _, body in server.asked for ids in body["input_ids"]) for server in servers]
    assert sessions == [[0, 0, 0, 2, 2, 2], [1, 1, 1, 3, 3, 3]]


def test_sessions_do_not_wait_for_each_other(serve: Serve, pool_of: MakePool) -> None:
    slow_may_end = threading.Event()

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if body["input_ids"][0] == [1]:
            assert slow_may_end.wait(30)
        return 200, [reply(prompt[-1]) for prompt in body["input_ids"]]

    pool = pool_of(at(serve(Echo(answer))))

    async def ask() -> list[int]:
        slow = asyncio.ensure_future(pool.complete(request(1), session="slow"))
        quick = await asyncio.wait_for(pool.complete(request(2), session="quick"), 20)
        assert not slow.done()
        slow_may_end.set()
        return [quick.token_ids[0], (await slow).token_ids[0]]

    assert asyncio.run(ask()) == [2, 1]


def test_what_a_session_asks_at_the_same_moment_goes_in_slices(serve: Serve, pool_of: MakePool) -> None:
    server = serve()
    pool = pool_of(at(server))

    async def ask() -> list[int]:
        works = [pool.complete(request(7, token), session="a") for token in range(SLICE + 3)]
        return [completion.token_ids[0] for completion in await asyncio.gather(*works)]

    for _ in range(2):
        assert asyncio.run(ask()) == list(range(SLICE + 3))
    assert sorted(len(body["input_ids"]) for _, body in server.asked) == [3, 3, SLICE, SLICE]


def test_all_who_asked_together_are_told_of_a_failure(serve: Serve, pool_of: MakePool) -> None:
    pool = pool_of(at(serve(Echo(lambda body: (400, {"message": "out of memory"})))))

    async def ask() -> list[object]:
        works = [pool.complete(request(token), session="a") for token in range(2)]
        return await asyncio.gather(*works, return_exceptions=True)

    assert [type(failure) for failure in asyncio.run(ask())] == [ServerError, ServerError]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((400, {"error": {"message": "The input is longer than the context."}}), "The input is longer than the"),
        ((503, "Service unavailable"), r"refused /generate \(503\): Service unavailable"),
        ((200, [reply(1, reason={"type": "abort", "message": "out of memory"})]), "gave up a request: out of memory"),
    ],
)
def test_a_refusal_is_passed_on(serve: Serve, pool_of: MakePool, answer: tuple[int, Any], sentence: str) -> None:
    server = serve(lambda path, body: answer)
    with pytest.raises(ServerError, match=sentence):
        pool_of(at(server, api_key="secret")).generate([request(1)], lockstep=False)
    assert server.authorizations == {"Bearer secret"}


def test_a_server_that_fails_ends_the_wait_for_the_others_at_once(serve: Serve, pool_of: MakePool) -> None:
    may_end, ended = threading.Event(), threading.Event()

    def never(body: dict[str, Any]) -> tuple[int, Any]:
        may_end.wait(60)
        ended.set()
        return 200, []

    slow, broken = serve(Echo(never)), serve(Echo(lambda body: (400, {"message": "out of memory"})))
    with pytest.raises(ServerError, match=r"refused /generate \(400\): out of memory"):
        pool_of(at(slow), at(broken), timeout=60).generate([request(1), request(2)], lockstep=True)
    assert not ended.is_set()
    may_end.set()


def test_a_connection_that_is_closed_before_an_answer_is_tried_once_more(serve: Serve, pool_of: MakePool) -> None:
    server = serve(Echo(closes=1))
    assert pool_of(at(server)).generate([request(1)], lockstep=True)[0].token_ids == (1,)
    assert server.paths == [FLUSH, "/generate", "/generate"]
    twice = serve(Echo(closes=2))
    with pytest.raises(ServerError, match=f"{twice.address} cannot be reached: Server disconnected"):
        pool_of(at(twice)).generate([request(1)], lockstep=True)


def test_a_broken_connection_is_explained_by_who_watches_the_server(pool_of: MakePool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"  # nobody listens
    causes = iter([None, "The SGLang server died (killed by signal 9): log.txt"])
    watched = Endpoint(address=address, diagnose=lambda: next(causes))
    with pytest.raises(ServerError, match=r"^The SGLang server died \(killed by signal 9\): log.txt$"):
        pool_of(watched).generate([request(1)], lockstep=False)
    with pytest.raises(ServerError, match=f"{address} cannot be reached: .*[Cc]onnect"):
        pool_of(Endpoint(address=address)).generate([request(1)], lockstep=False)


def test_a_server_that_comes_back_gets_the_present_weights_before_its_first_request(
    serve: Serve, pool_of: MakePool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was away for one request, which is sent twice."""
    away, other = serve(Echo(closes=2)), serve()
    pool, batch = pool_of(at(away), at(other)), [request(token) for token in range(SLICE + 1)]
    assert [each.token_ids for each in pool.generate(batch, lockstep=False)] == [(token,) for token in range(SLICE + 1)]
    before = len(away.asked)
    pool.generate(batch, lockstep=False)
    assert len(away.asked) == before, "without the weights it gets no requests"
    pool.load(WEIGHTS, "step_1")
    assert {each.weight_version for each in pool.generate(batch, lockstep=False)} == {"step_1"}
    assert [path.partition("?")[0] for path in away.paths[before:][:3]] == [
        "/update_weights_from_disk",
        "/flush_cache",
        "/generate",
    ]
    said = capsys.readouterr().err
    assert "Its work is repeated by the other 1." in said
    assert "Server 1 answers again." in said


def test_a_server_that_stays_away_is_asked_again_at_each_weight_sync(serve: Serve, pool_of: MakePool) -> None:
    def script(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        raise Hangup

    away, other = serve(script), serve()
    pool = pool_of(at(away), at(other))
    for step in (1, 2, 3):
        pool.load(WEIGHTS, f"step_{step}")
    assert away.paths == 6 * ["/update_weights_from_disk"], "each is sent twice"
    assert pool.generate([request(1)], lockstep=False)[0].weight_version == "step_3"
