"""A served classifier: its memory, and answers that are too long."""

from typing import cast

import pytest

from dagrpo.engine.background import BackgroundLoop
from dagrpo.engine.errors import ServerError
from dagrpo.engine.http import HttpServer
from dagrpo.engine.sglang.classifier import MOST_BYTES, SGLangClassifier

EMPTY, RELEASE, RESUME = "/flush_cache", "/release_memory_occupation", "/resume_memory_occupation"


class ScoringServer:
    """Server that records what it is asked, and gives every conversation the number of its tokens."""

    address = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def post(self, path: str, body: dict[str, list[list[int]]]) -> bytes:
        self.paths.append(path.partition("?")[0])
        replies = [f'{{"embedding": [{len(tokens)}.0]}}' for tokens in body.get("input_ids", [])]
        return f"[{', '.join(replies)}]".encode()


def test_a_classifier_that_leaves_is_in_gpu_memory_only_while_it_scores() -> None:
    first, second = ScoringServer(), ScoringServer()
    with BackgroundLoop() as loop:
        classifier = SGLangClassifier([cast(HttpServer, first), cast(HttpServer, second)], loop, leaves=True)
        assert first.paths == second.paths == [EMPTY, RELEASE]
        assert classifier.scores([[5, 6]] * 65) == [2.0] * 65, "a request to each server"
    assert first.paths == second.paths == [EMPTY, RELEASE, RESUME, "/classify", EMPTY, RELEASE]


def test_a_classifier_that_stays_is_only_asked_for_scores() -> None:
    server = ScoringServer()
    with BackgroundLoop() as loop:
        assert SGLangClassifier([cast(HttpServer, server)], loop).scores([[5]]) == [1.0]
    assert server.paths == ["/classify"]


class Talkative(ScoringServer):
    """Server that answers with more than a score takes."""

    async def post(self, path: str, body: dict[str, list[list[int]]]) -> bytes:
        return b'[{"embedding": [' + b"0.0, " * MOST_BYTES + b"0.0]}]"


def test_an_answer_longer_than_scores_are_is_refused() -> None:
    with BackgroundLoop() as loop, pytest.raises(ServerError, match=r"did not answer /classify .*81,9\d\d bytes"):
        SGLangClassifier([cast(HttpServer, Talkative())], loop).scores([[5]])
