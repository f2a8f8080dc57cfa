"""Protocol of a rollout engine."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.section import HeadDtype
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.sglang.adapters import Adapter


class RolloutEngine(Protocol):
    """Engine of servers that hold the same weights and complete tokens with them. `open_engine` opens one; tests script one."""

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        """Return one completion per request, in order. In lockstep, the same requests give the same tokens and logprobs.

        A lockstep batch of several turns goes in waves: `places` says which attempt of the batch each request belongs to (None:
        in their order), and only the first wave empties the cache.
        """
        ...

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return one completion. Requests of one session go to one server, which has their shared tokens in its cache.

        `abortable`: the request is not sent together with those of other sessions, so that it does not wait for them and can be
        aborted. Raises ServerGone if that server died and others are left: the session's next requests go to one of those.
        """
        ...

    async def abort(self, sessions: Collection[str]) -> int:
        """Abort the abortable requests of these sessions, whose results are not needed any more.

        When it returns, all of them have ended. Returns the number of tokens that the servers report for them.
        """
        ...

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order, at temperature 1 over the whole vocabulary."""
        ...

    def interrupt(self) -> None:
        """Make calls that another thread waits for raise an error. The engine is about to be closed, and takes no further requests."""
        ...

    def load(self, weights: Tensors, version: str) -> None:
        """Replace the weights, or the adapter of an engine that was opened with one; later answers are checked to come from them."""
        ...

    def release_memory(self) -> None:
        """Release GPU memory until `load`, which comes next. No effect unless runtime.engine.release_memory asks for it."""
        ...

    def digests(self) -> Sequence[Sequence[Mapping[str, str]]]:
        """Return the digests that each server reports, [servers][ranks]: its name of each tensor, and that tensor's digest (see
        engine/sglang/digests.py). A server has one rank for each GPU that it divides its weights over.

        Only while no request is running.
        """
        ...


class EngineOpener(Protocol):
    """Signature of `open_engine`, for stand-ins."""

    def __call__(
        self,
        model: Path,
        params: EngineConfig,
        log: Path,
        *,
        dtype: str,
        deterministic: bool,
        head_dtype: HeadDtype = None,
        weights: Tensors | None = None,
        version: str = "initial",
        keep_pictures: bool = False,
        adapter: Adapter | None = None,
    ) -> AbstractContextManager[RolloutEngine]: ...
