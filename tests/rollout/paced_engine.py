"""An engine whose completions take as many turns of the event loop as a test says, so that no test waits for a clock."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection

from tests.rollout.talking import TalkingEngine

from dagrpo.core.types import ABORTED, Completion, SamplingRequest
from dagrpo.engine.interface import Aborted

NEVER = 1 << 30  # turns: until it is aborted
TOKENS_OF_ABORTED = 5  # that a request had written when it was aborted


class PacedEngine(TalkingEngine):
    """Says what `says` says to a request; `pace` is how long that takes.

    What is at work, by session, and what was aborted, is there to be looked at.
    """

    def __init__(
        self, pace: Callable[[SamplingRequest], int], says: Callable[[SamplingRequest], str] = lambda request: "done"
    ) -> None:
        super().__init__(str)
        self.pace = pace
        self.at_work = defaultdict[str, list[SamplingRequest]](list)
        self.aborted: list[str] = []
        self.was_at_work: list[SamplingRequest] = []  # when it was aborted
        self.abortable: set[bool] = set()
        self._says = says

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.abortable.add(abortable)
        self.at_work[session].append(request)
        try:
            for _ in range(self.pace(request)):
                await asyncio.sleep(0)
        finally:
            self.at_work[session].remove(request)
        self.script = lambda said: self._says(request)
        return self._said(request)

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        """Each request that is at work has written some tokens."""
        self.aborted += sorted(sessions)
        stopped = [(session, request) for session in sorted(sessions) for request in self.at_work[session]]
        self.was_at_work += [request for _, request in stopped]
        await asyncio.sleep(0)
        return [
            Aborted(session=session, request=request, completion=self.part_of(request)) for session, request in stopped
        ]

    def part_of(self, request: SamplingRequest) -> Completion:
        """What a request has written when it is aborted."""
        tokens = tuple(range(TOKENS_OF_ABORTED))
        return Completion(token_ids=tokens, logprobs=(-1.0,) * len(tokens), finish_reason=ABORTED, weight_version="v")
