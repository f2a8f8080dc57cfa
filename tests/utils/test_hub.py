"""Whatever a hub answers, or does not, is one sentence within seconds, and none holds a token."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

from dagrpo.core.errors import UserError
from dagrpo.utils import hub
from dagrpo.utils.hub import Wanted, require_answer

WANTED = Wanted(
    repository="someone/small", revision="0" * 40, kind="dataset", correct="correct the name", instead="copy it here"
)
TOKEN = "hf_secret"


class StandIn(ThreadingHTTPServer):
    """Answers everything with one status, or not at all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.code = ""  # the hub's own word for an error
        self.silent = threading.Event()  # set: no answer comes
        self.stopped = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        if self.server.silent.is_set():
            self.server.stopped.wait()
            return
        self.send_response(self.server.status)
        self.send_header("X-Error-Code", self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        address = f"http://user:password@127.0.0.1:{server.server_port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        yield server
        server.stopped.set()
        server.shutdown()


def _told() -> str:
    with pytest.raises(UserError) as told:
        require_answer(WANTED)
    sentence = str(told.value)
    assert len(sentence.splitlines()) == 1
    assert sentence.endswith("or copy it here.")
    assert TOKEN not in sentence
    assert "password" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (404, "RepoNotFound", r"knows no someone/small: correct the name"),
        (404, "RevisionNotFound", r"has no commit 0{40} of someone/small: correct the name"),
        (404, "", r"knows no someone/small: correct the name"),
        (500, "", r"cannot be read \(http://127.* answers 500 Internal Server Error\): try again later"),
        (503, "", r"answers 503 Service Unavailable\): try again later"),
        (401, "", r"is not handed out .*401.*correct the name, or set HF_TOKEN to a token that may read it"),
        (403, "GatedRepo", r"403 Forbidden.* terms on http://127\.0\.0\.1:\d+/datasets/someone/small"),
    ],
)
def test_an_answer_that_is_no_is_one_sentence_without_the_token(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, status: int, code: str, told: str
) -> None:
    stand_in.status, stand_in.code = status, code
    assert re.search(told, _told())
    if status in (401, 403):
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert "the token in HF_TOKEN, or of `hf auth login`, may not read it: renew the token" in _told()


def test_a_hub_that_accepts_and_says_nothing_is_given_up(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.2)
    stand_in.silent.set()
    assert "cannot be reached (timed out)" in _told()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no.such.host.invalid", "nonsense"])
def test_a_hub_that_is_not_there_is_told_with_what_to_set(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    sentence = _told()
    assert f"and {address} cannot be reached (" in sentence
    assert "behind a proxy, set HTTPS_PROXY; where the hub has a mirror, set HF_ENDPOINT" in sentence
