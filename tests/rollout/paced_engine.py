"""An engine whose completions take as many turns of the event loop as a test says, so that no test waits for a clock."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection

from tests.rollout.talking import TalkingEngine

from dagrpo.core.types import Completion, SamplingRequest

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
        self.at_work = Counter[str]()
        self.aborted: list[str] = []
        self.abortable: set[bool] = set()
        self._says = says

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.abortable.add(abortable)
        self.at_work[session] += 1
        try:
            for _ in range(self.pace(request)):
                await asyncio.sleep(0)
        finally:
            self.at_work[session] -= 1
        self.script = lambda said: self._says(request)
        return self._said(request)

    async def abort(self, sessions: Collection[str]) -> int:
        """Each request that is at work has written some tokens."""
        self.aborted += sorted(sessions)
        stopped = sum(self.at_work[session] for session in sessions)
        await asyncio.sleep(0)
        return TOKENS_OF_ABORTED * stopped
