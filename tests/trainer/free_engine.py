"""An engine whose attempts run freely, and of which some groups are slower than the step that asks for them."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from tests.trainer import runs

from dagrpo.core.types import ABORTED, Completion, SamplingRequest
from dagrpo.engine.interface import Aborted

LONG = 0.7  # seconds: a batch is full before, also on a busy machine


class FreeEngine(runs.ScriptedEngine):
    """Completions of more than four tokens take long. What is aborted has come to all of its tokens but the last two.

    A request that goes on with a completion gets the rest of what its seed decides, as SGLang's draws follow from seed and position.
    """

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.asked.append("complete")
        rest = self._rest(request)
        self.at_work[session].append(request)
        try:
            await asyncio.sleep(LONG if len(rest.token_ids) > 4 else 0)
        finally:
            self.at_work[session].remove(request)
        return rest

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        self.asked.append(f"abort {len(sessions)}")
        return [
            Aborted(session=session, request=request, completion=self._aborted(request))
            for session in sorted(sessions)
            for request in self.at_work[session]
        ]

    @property
    def at_work(self) -> dict[str, list[SamplingRequest]]:
        """Requests that wait for their completion, by session."""
        found: dict[str, list[SamplingRequest]] = self.__dict__.setdefault("requests_at_work", defaultdict(list))
        return found

    def _rest(self, request: SamplingRequest) -> Completion:
        """The completion of a request, which may go on with one: what is there is missing in its limit."""
        done = runs.MAX_NEW_TOKENS - request.max_new_tokens
        prompt = request.input_ids[: len(request.input_ids) - done]
        whole = self._completion(replace(request, input_ids=prompt, max_new_tokens=runs.MAX_NEW_TOKENS))
        assert whole.token_ids[:done] == request.input_ids[len(prompt) :], "it goes on with other tokens"
        return _cut(whole, slice(done, None))

    def _aborted(self, request: SamplingRequest) -> Completion:
        rest = self._rest(request)
        return replace(_cut(rest, slice(max(len(rest.token_ids) - 2, 0))), finish_reason=ABORTED)


def _cut(completion: Completion, part: slice) -> Completion:
    return replace(
        completion,
        token_ids=completion.token_ids[part],
        logprobs=completion.logprobs[part],
        support=completion.support[part],
    )
