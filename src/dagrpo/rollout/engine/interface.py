"""What the rest of the program asks of a rollout engine."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.params.rollout import HeadDtype
from dagrpo.params.runtime import Engine
from dagrpo.records import Completion, SamplingRequest, ScoringRequest
from dagrpo.rollout.engine.adapters import Adapter


class RolloutEngine(Protocol):
    """Servers that all hold the same weights, and complete tokens with them. Tests script one; `open_engine` opens one."""

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        """One completion per request, in order. In lockstep, the same requests give the same tokens and logprobs.

        A lockstep batch of several turns goes in waves: `places` says which attempt of the batch each request is of (None:
        in their order), and only the first wave empties the cache.
        """
        ...

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """One completion. Requests of one session go to one server, which has the tokens they share in its cache.

        `abortable`: it is asked for together with none of another session's, so that it waits for none of those and can be
        aborted. ServerGone when that server died and others are left: the session's next requests go to one of those.
        """
        ...

    async def abort(self, sessions: Collection[str]) -> int:
        """Have the servers stop computing what was asked for in these sessions, apart from others. Nobody waits for it any more.

        When it returns, all of that is over. How many tokens the servers say that they had written for it.
        """
        ...

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """The logprobs that each request asks for, in order, at temperature 1 over the whole vocabulary."""
        ...

    def interrupt(self) -> None:
        """Make what another thread waits for end in an error there. Nothing is asked afterwards: the engine is about to be closed."""
        ...

    def load(self, weights: Tensors, version: str) -> None:
        """Replace the weights, or the adapter of an engine that was opened with one; from now on every answer is checked to come
        from them.
        """
        ...

    def release_memory(self) -> None:
        """Leave the GPU until `load`, which comes next. No effect unless runtime.engine.release_memory asks for it."""
        ...

    def digests(self) -> Sequence[Sequence[Mapping[str, str]]]:
        """Return what each server says that it holds, [servers][ranks]: its name of each tensor, and that tensor's digest (see
        digests.py). A server has one rank for each GPU that it divides its weights over.

        Only while no request is running.
        """
        ...


class EngineOpener(Protocol):
    """`open_engine`, or what stands in for it."""

    def __call__(
        self,
        model: Path,
        params: Engine,
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
