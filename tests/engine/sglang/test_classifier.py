"""A served classifier: its memory, and answers that are too long."""

import json
import math
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import anything

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


def test_a_classifier_that_leaves_is_in_gpu_memory_only_while_it_scores_and_another_is_only_asked_for_scores() -> None:
    first, second, staying = ScoringServer(), ScoringServer(), ScoringServer()
    with BackgroundLoop() as loop:
        classifier = SGLangClassifier([cast(HttpServer, first), cast(HttpServer, second)], loop, leaves=True)
        assert first.paths == second.paths == [EMPTY, RELEASE]
        assert classifier.scores([[5, 6]] * 65) == [2.0] * 65, "a request to each server"
        assert SGLangClassifier([cast(HttpServer, staying)], loop).scores([[5]]) == [1.0]
    assert first.paths == second.paths == [EMPTY, RELEASE, RESUME, "/classify", EMPTY, RELEASE]
    assert staying.paths == ["/classify"]


class Saying(ScoringServer):
    """Server that gives one answer to everything."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer

    async def post(self, path: str, body: dict[str, list[list[int]]]) -> bytes:
        return self.answer


def _scored(answer: bytes) -> list[float]:
    with BackgroundLoop() as loop:
        return SGLangClassifier([cast(HttpServer, Saying(answer))], loop).scores([[5]])


def test_an_answer_longer_than_scores_are_is_refused() -> None:
    with pytest.raises(ServerError, match=r"did not answer /classify .*81,9\d\d bytes"):
        _scored(b'[{"embedding": [' + b"0.0, " * MOST_BYTES + b"0.0]}]")


@pytest.mark.parametrize(
    "embedding",
    [
        *('["3"]', '[" 1_0 "]', "[true]", "[null]", "[]", "[1, 2]", "[[1]]", '"1"', '{"0": 1}'),
        *("[NaN]", "[Infinity]", "[1e999]", f"[1{'0' * 400}]", f"[1{'0' * 5000}]", "[" * 9000, "[0x10]"),
        '[1], "embedding": [10]',
        '[1]}, {"embedding": [1]',
    ],
)
def test_only_one_finite_number_is_a_score(embedding: str) -> None:
    with pytest.raises(ServerError):
        _scored(f'[{{"embedding": {embedding}}}]'.encode())
    assert _scored(b'[{"embedding": [-2], "meta_info": {"prompt_tokens": 5}}]') == [-2.0]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    anything.map(lambda value: json.dumps([{"embedding": value}]).encode())
    | anything.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=60)
)
def test_any_answer_is_one_score_or_refused(answer: bytes) -> None:
    with suppress(ServerError):
        (score,) = _scored(answer)
        assert type(score) is float
        assert math.isfinite(score)
