"""An engine without servers: it completes tokens as a function of the request alone, and remembers how it was asked."""

import asyncio
from collections.abc import Collection, Sequence

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.interface import Aborted, HeldWeights


class ScriptedEngine:
    """Answers each request with its own seed, so that a mix-up shows."""

    def __init__(self) -> None:
        self.batches: list[list[SamplingRequest]] = []  # lockstep ones
        self.places: list[list[int]] = []  # of their attempts
        self.emptied_caches = 0
        self.sessions: list[str] = []  # of single completions
        self.requests: list[SamplingRequest] = []  # the same
        self.most_in_flight = 0
        self._in_flight = 0

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        assert lockstep
        self.batches.append(list(requests))
        self.places.append(list(places or range(len(requests))))
        self.emptied_caches += first_wave
        return [answer(request) for request in requests]

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.sessions.append(session)
        self.requests.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        await asyncio.sleep(0.001)
        self._in_flight -= 1
        return answer(request)

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        """Nobody is still waited for."""
        return []

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """The number of each token, negated and in tenths."""
        assert lockstep
        return [tuple(-token / 10 for token in request.token_ids[request.first :]) for request in requests]

    def interrupt(self) -> None:
        """Nobody waits long for it."""

    def load(self, weights: Tensors, version: str) -> None:
        raise NotImplementedError("nothing here has weights")

    def release_memory(self) -> None:
        raise NotImplementedError("nothing here has weights")

    def digests(self) -> list[HeldWeights]:
        raise NotImplementedError("nothing here has weights")


def answer(request: SamplingRequest) -> Completion:
    """Two tokens: one that tells the seed, and the prompt's last."""
    token_ids = (request.seed % 10, request.input_ids[-1])[: request.max_new_tokens]
    return Completion(
        token_ids=token_ids, logprobs=(-0.5, -0.25)[: len(token_ids)], finish_reason="length", weight_version="v"
    )
