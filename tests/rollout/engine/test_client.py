"""The client against a scripted server: what it sends, what it makes of the answers."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dagrpo.records import SamplingRequest
from dagrpo.rollout.engine.client import SLICE, RolloutClient, split
from dagrpo.rollout.engine.errors import ServerError

Script = Callable[[str, dict[str, Any]], tuple[int, Any]]


class ScriptedServer:
    """Answers with what a script says, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: set[str | None] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                outer.authorizations.add(self.headers.get("Authorization"))
                status, answer = script(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


Serve = Callable[..., ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedServer] = []

    def start(script: Script | None = None) -> ScriptedServer:
        servers.append(ScriptedServer(script or echo()))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def reply(token: int, version: str = "default", reason: dict[str, Any] | None = None) -> dict[str, Any]:
    spans = [{"version": version, "start": 0, "end": 1}]
    return {
        "meta_info": {
            "finish_reason": reason or {"type": "length", "length": 1},
            "weight_version": version,
            "weight_versions": spans,
            "output_token_logprobs": [[-0.1 * token, token, None]],
        }
    }


def echo(**changes: Any) -> Script:
    """Completes every prompt by its own last token."""

    def script(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/generate":
            return 200, {"success": True, "message": "done"}
        return 200, [reply(prompt[-1], **changes) for prompt in body["input_ids"]]

    return script


def request(*tokens: int, seed: int = 0) -> SamplingRequest:
    return SamplingRequest(input_ids=tokens, seed=seed, temperature=0.7, top_p=0.9, top_k=-1, max_new_tokens=4)


def test_a_lockstep_batch_goes_to_an_empty_server_as_one_http_request(serve: Serve) -> None:
    server = serve()
    completions = RolloutClient([server.address], 5).generate([request(1, 2, seed=5), request(3)], lockstep=True)
    assert [completion.token_ids for completion in completions] == [(2,), (3,)]
    assert completions[0].logprobs == (-0.2,)
    assert completions[0].finish_reason == "length"
    assert [path for path, _ in server.asked] == ["/flush_cache?timeout=10.0", "/generate"]
    body = server.asked[1][1]
    assert body["input_ids"] == [[1, 2], [3]]
    assert body["return_logprob"] is True
    assert body["sampling_params"][0] == {
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "max_new_tokens": 4, "sampling_seed": 5,
    }  # fmt: skip


def test_prompts_with_several_samples_are_read_once_before(serve: Serve) -> None:
    server = serve()
    batch = [request(1, 2, seed=seed) for seed in range(3)] + [request(9)]
    RolloutClient([server.address], 5).generate(batch, lockstep=False)
    assert server.asked[0] == ("/generate", {"input_ids": [[1, 2]], "sampling_params": {"max_new_tokens": 0}})
    assert len(server.asked[1][1]["input_ids"]) == 4


def test_new_weights_leave_an_empty_cache_and_are_expected_afterwards(serve: Serve, tmp_path: Path) -> None:
    server = serve(echo(version="step_1"))
    client = RolloutClient([server.address], 5)
    client.update_weights(tmp_path, "step_1")
    client.generate([request(1)], lockstep=True)
    assert [path for path, _ in server.asked] == ["/update_weights_from_disk", "/generate"]
    assert server.asked[0][1] == {"model_path": str(tmp_path), "weight_version": "step_1", "flush_cache": True}
    client.update_weights(tmp_path, "step_2")
    with pytest.raises(ServerError, match=r"answered with weights \['step_1'\] instead of 'step_2'"):
        client.generate([request(1)], lockstep=True)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 3 * SLICE + 5])
def test_completions_come_back_in_order_whatever_server_made_them(serve: Serve, lockstep: bool, number: int) -> None:
    servers = [serve(), serve(), serve()]
    client = RolloutClient([server.address for server in servers], 5)
    completions = client.generate([request(token) for token in range(number)], lockstep=lockstep)
    assert [completion.token_ids for completion in completions] == [(token,) for token in range(number)]


def test_lockstep_splits_a_batch_by_turns_and_other_batches_are_sliced() -> None:
    assert split(5, 2, lockstep=True) == [(0, range(0, 5, 2)), (1, range(1, 5, 2))]
    assert split(1, 2, lockstep=True) == [(0, range(0, 1, 2))]
    assert split(SLICE + 1, 2, lockstep=False) == [(0, range(SLICE)), (1, range(SLICE, SLICE + 1))]


def test_the_api_key_goes_along(serve: Serve) -> None:
    server = serve()
    RolloutClient([server.address], 5, api_key="secret").generate([request(1)], lockstep=True)
    assert server.authorizations == {"Bearer secret"}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((400, {"error": {"message": "The input is longer than the context."}}), "The input is longer than the"),
        ((400, {"success": False, "message": "no such file"}), "refused /generate: no such file"),
        ((503, "Service unavailable"), "refused /generate: Service unavailable"),
        ((200, [reply(1, reason={"type": "abort", "message": "out of memory"})]), "gave up a request: out of memory"),
    ],
)
def test_a_refusal_is_passed_on(serve: Serve, answer: tuple[int, Any], sentence: str) -> None:
    server = serve(lambda path, body: answer)
    with pytest.raises(ServerError, match=sentence):
        RolloutClient([server.address], 5).generate([request(1)], lockstep=False)


def test_logprobs_that_are_no_numbers_are_an_error(serve: Serve) -> None:
    broken = reply(1)
    broken["meta_info"]["output_token_logprobs"] = [[None, 1, None]]
    server = serve(lambda path, body: (200, [broken]))
    with pytest.raises(ServerError, match="weights are not finite"):
        RolloutClient([server.address], 5).generate([request(1)], lockstep=False)


def test_a_server_that_does_not_answer_in_time_is_an_error(serve: Serve) -> None:
    def sleep(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.3)
        return 200, []

    server = serve(sleep)
    with pytest.raises(ServerError, match=r"did not answer within 0\.1 s \(rollout\.engine\.request_timeout\)"):
        RolloutClient([server.address], 0.1).generate([request(1)], lockstep=False)


def test_a_broken_connection_is_explained_by_who_watches_the_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"  # nobody listens
    causes = iter([None, "The SGLang server died (killed by signal 9): log.txt"])
    client = RolloutClient([address], 5, diagnose=lambda: next(causes))
    with pytest.raises(ServerError, match=r"^The SGLang server died \(killed by signal 9\): log.txt$"):
        client.generate([request(1)], lockstep=False)
    with pytest.raises(ServerError, match=f"{address} cannot be reached: .*refused"):
        RolloutClient([address], 5).generate([request(1)], lockstep=False)
