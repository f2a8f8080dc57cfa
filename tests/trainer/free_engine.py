"""An engine whose attempts run freely, and of which some groups are slower than the step that asks for them."""

import asyncio
from collections.abc import Collection

from tests.trainer import runs

from dagrpo.core.types import Completion, SamplingRequest

LONG = 0.7  # seconds: a batch is full before, also on a busy machine


class FreeEngine(runs.ScriptedEngine):
    """Completions of more than four tokens take long."""

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        self.asked.append("complete")
        completion = self._completion(request)
        await asyncio.sleep(LONG if len(completion.token_ids) > 4 else 0)
        return completion

    async def abort(self, sessions: Collection[str]) -> int:
        self.asked.append(f"abort {len(sessions)}")
        return len(sessions)
