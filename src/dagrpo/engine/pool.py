"""Engine of several servers with the same weights.

Lockstep makes a batch repeatable to the bit. Each token depends on its request's seed, its position and the logits alone,
but logits round differently when a matrix product has other rows. So a lockstep batch goes to an idle server with an empty
cache, as one HTTP request: SGLang gives the requests of one HTTP request to its scheduler in one piece, and all that the
scheduler then does follows from them. Nothing else may use the server meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

import torch

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.background import BackgroundLoop, all_of
from dagrpo.engine.errors import RequestsAborted, ServerError, ServerGone, ServerLost, ServerUnreachable
from dagrpo.engine.interface import HeldWeights, WeightVersion, new_version
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder
from dagrpo.utils.console import say

SLICE = 64  # requests per HTTP request when not in lockstep
SLICES_IN_FLIGHT = 8  # per server
SECONDS_TO_ABORT = 0.1  # until requests that go on are aborted once more: the server may not have known them yet

DEAD = (ServerLost, ServerUnreachable)  # what a client raises of a server that will not answer any more

T = TypeVar("T")
_Key = tuple[int, str, bool]  # server, session, whether it can be aborted


class Bucket(Protocol):
    """Tensors of a weight sync that a server opens together, in memory that it shares with this process."""

    @property
    def is_last(self) -> bool:
        """Return True for the last bucket of a weight sync."""
        ...

    def payload(self) -> str:
        """Return the handle for one server and one opening."""
        ...


class Client(Protocol):
    """Client of one server. Every method raises ServerError if the server dies, refuses, or does not answer in time."""

    async def generate(
        self, requests: Sequence[SamplingRequest], version: WeightVersion, identifiers: Sequence[str] = ()
    ) -> list[Completion]:
        """Return one completion per request, in order, by one HTTP request. `identifiers`: of each, for `abort`.

        Raises RequestsAborted for aborted requests, and ServerError if other weights than `version` made them.
        """
        ...

    async def score(self, requests: Sequence[ScoringRequest], version: WeightVersion) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order."""
        ...

    async def abort(self, identifiers: Sequence[str]) -> None:
        """Abort these requests. An abort before its request has no effect: callers repeat it."""
        ...

    async def load(self, folder: Path, version: WeightVersion) -> None:
        """Load a folder's safetensors and empty the cache. A server without GPU memory allocates it again."""
        ...

    async def load_adapter(self, folder: Path, version: WeightVersion) -> None:
        """Load an adapter in PEFT's layout, which serves all later requests, and remove every other one."""
        ...

    async def begin_sync(self) -> None:
        """Prepare for buckets of weights."""
        ...

    async def load_bucket(self, payload: str, version: WeightVersion | None) -> None:
        """Load one bucket. `version` comes with the last one."""
        ...

    async def end_sync(self) -> None:
        """Switch to the new weights and empty the cache."""
        ...

    async def release_memory(self) -> None:
        """Release the GPU memory of weights and cache until the next weight sync."""
        ...

    async def digests(self) -> HeldWeights:
        """Return the digests of the tensors that the server holds."""
        ...

    async def empty_cache(self) -> None:
        """Empty the prefix cache; wait until the server is idle."""
        ...


_Ask = Callable[[Client, Sequence[int]], Awaitable[list[T]]]


@dataclass(slots=True, eq=False)
class _SharedRequest:
    """Requests of one HTTP request, and the future that all callers wait for until its last completion."""

    server: int
    requests: list[SamplingRequest] = field(default_factory=list)
    identifiers: list[str] = field(default_factory=list)  # of each, where it can be aborted
    answers: "asyncio.Future[list[Completion]]" = field(init=False)


class ServerPool:
    """Engine that `open_engine` opens. Its methods raise ServerError if a server dies, refuses, or does not answer in time."""

    def __init__(
        self,
        servers: Sequence[Client],
        loop: BackgroundLoop,
        folder: WeightsFolder,
        version: WeightVersion,
        *,
        leaves: bool = False,
        keeps_all: bool = False,
        adapters: AdapterFolders | None = None,
        buckets: Callable[[Tensors], Iterator[Bucket]] | None = None,
    ) -> None:
        """Pool servers that hold the weights `version`, or get them with `load`.

        `leaves`: whether they can release their GPU memory (`release_memory`). `keeps_all`: whether the death of one is the end, as the
        assignment of requests to servers depends on their number.
        `adapters`: the folders of an adapter's versions, if `load` gets those. It is then called before any request.
        `buckets`: cuts weights into buckets of tensors that all servers can open; None: weights travel in the folder.
        """
        assert servers, "no server"
        self._servers = dict(enumerate(servers))  # those that answer, by number
        self._loop = loop
        self._folder = folder
        self._version = version
        self._leaves = leaves
        self._keeps_all = keeps_all
        self._adapters = adapters
        self._buckets = buckets
        self._cache_is_empty = False
        self._server_of: dict[str, int] = {}  # by session
        self._gathering: dict[_Key, _SharedRequest] = {}  # that others can join
        self._abortable: dict[_SharedRequest, str] = {}  # on their way, and their sessions
        self._interrupted = False

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        """Return one completion per request, in order. In lockstep, the same requests give the same tokens and logprobs.

        See RolloutEngine for `places` and `first_wave`: a batch of several turns keeps its cache between the waves.
        """
        parts = split(places or range(len(requests)), [*self._servers], lockstep=lockstep)

        async def ask(server: Client, part: Sequence[int]) -> list[Completion]:
            return await server.generate([requests[i] for i in part], self._version)

        return self._loop.run(self._asked(ask, parts, empty_cache=lockstep and first_wave))

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order; see RolloutEngine."""
        parts = split(range(len(requests)), [*self._servers], lockstep=lockstep)

        async def ask(server: Client, part: Sequence[int]) -> list[tuple[float, ...]]:
            return await server.score([requests[i] for i in part], self._version)

        return self._loop.run(self._asked(ask, parts, empty_cache=lockstep))

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return one completion. Requests of one session go to one server, which has their shared tokens in its cache.

        Requests of a session at the same moment, such as the first turns of a group, are one HTTP request, up to SLICE of
        them: one for each costs several times as much, and one for several sessions would wait for the slowest of all.
        `abortable`: whether they can be aborted. Raises ServerGone if that server died and others are left.
        """
        # Two HTTP requests with pictures at the same time end a server that samples deterministically (see sglang/command.py), so
        # that the pictures of all sessions that ask at the same moment share one.
        together = request.pictures is not None and not abortable
        key = (self._server_for(session), "" if together else session, abortable)
        shared = self._gathering.get(key) or self._gather(key)
        shared.requests.append(request)
        if abortable:
            shared.identifiers.append(uuid4().hex)
        place = len(shared.requests) - 1
        if len(shared.requests) == SLICE:
            del self._gathering[key]
        return (await asyncio.shield(shared.answers))[place]

    async def abort(self, sessions: Collection[str]) -> int:
        """Abort the abortable requests of these sessions; return the number of tokens that were written for them."""
        shared_requests = [shared for shared, session in self._abortable.items() if session in sessions]
        return sum(await all_of(map(self._aborted, shared_requests)))

    async def _aborted(self, shared: _SharedRequest) -> int:
        """Abort a request until it is over; return the number of tokens written. Its error matters only if no server is left."""
        while not shared.answers.done():
            if shared.server in self._servers:
                await self._abort_at(shared.server, shared.identifiers)
            await asyncio.wait([shared.answers], timeout=SECONDS_TO_ABORT)
        try:
            return sum(len(completion.token_ids) for completion in shared.answers.result())
        except RequestsAborted as aborted:
            return aborted.tokens
        except ServerError:
            return 0

    async def _abort_at(self, server: int, identifiers: Sequence[str]) -> None:
        try:
            await self._loop.join(self._servers[server].abort(identifiers))
        except DEAD as error:
            self._give_up(server, error)

    def _server_for(self, session: str) -> int:
        if self._server_of.get(session) not in self._servers:
            numbers = [*self._servers]
            self._server_of[session] = numbers[len(self._server_of) % len(numbers)]
        return self._server_of[session]

    def _gather(self, key: _Key) -> _SharedRequest:
        server, session, abortable = key
        shared = _SharedRequest(server)
        shared.answers = asyncio.ensure_future(self._send_gathered(key, shared))
        self._gathering[key] = shared
        if abortable:
            self._abortable[shared] = session
            shared.answers.add_done_callback(lambda _: self._abortable.pop(shared))
        return shared

    async def _send_gathered(self, key: _Key, shared: _SharedRequest) -> list[Completion]:
        await asyncio.sleep(0)  # until everybody who is about to ask has done so
        if self._gathering.get(key) is shared:
            del self._gathering[key]
        self._cache_is_empty = False
        self._require_going_on()
        if shared.server not in self._servers:
            raise ServerGone(f"server {shared.server} has died meanwhile")
        client = self._servers[shared.server]
        try:
            return await self._loop.join(client.generate(shared.requests, self._version, shared.identifiers))
        except DEAD as error:
            self._give_up(shared.server, error)
            raise ServerGone(str(error)) from None

    def _require_going_on(self) -> None:
        if self._interrupted:
            raise ServerError(
                "The run was told to stop while its rollouts were sampled: run the same command to go on."
            )

    def _give_up(self, server: int, error: ServerLost | ServerUnreachable) -> None:
        """Continue without a server. Raises its error if it was the last one, or all are needed."""
        if self._keeps_all or [*self._servers] == [server]:
            raise error
        if self._servers.pop(server, None) is not None:
            say(f"{str(error).removesuffix('.')}. Its work is done again by the other {len(self._servers)}.")

    def interrupt(self) -> None:
        """Make calls that another thread waits for raise an error, and send no further requests."""
        self._interrupted = True
        self._loop.cancel()

    def load(self, weights: Tensors, version: str) -> None:
        """Load these weights, or this adapter, into every server, and check that all later answers come from them."""
        self._version = new_version(version)
        if self._buckets is not None and self._adapters is None:
            self._sync_tensors(self._buckets(weights))
            return
        folder = self._folder.write(weights) if self._adapters is None else self._adapters.write(weights, self._version)
        if self._leaves:
            torch.cuda.empty_cache()  # servers come back to the same GPU, where this process keeps what it has freed
        self._loop.run(self._load_everywhere(folder))

    def _sync_tensors(self, buckets: Iterator[Bucket]) -> None:
        """Load weights into every server, bucket by bucket. After an error no server counts as having the new version."""
        if self._leaves:
            torch.cuda.empty_cache()
        self._everywhere(lambda server: server.begin_sync())
        self._send_buckets(buckets)
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call] # frees what servers have closed
        if self._leaves:
            torch.cuda.empty_cache()  # of the buckets: now the servers' key-value caches come back
        self._everywhere(lambda server: server.end_sync())
        self._cache_is_empty = True
        self._server_of.clear()

    def _send_buckets(self, buckets: Iterator[Bucket]) -> None:
        for bucket in buckets:
            version = self._version if bucket.is_last else None
            self._everywhere(lambda server: server.load_bucket(bucket.payload(), version))  # noqa: B023 - called at once

    def _everywhere(self, ask: Callable[[Client], Awaitable[None]]) -> None:
        """Call every server at the same time; continue without those that die."""

        async def ask_one(number: int) -> None:
            try:
                await ask(self._servers[number])
            except DEAD as error:
                self._give_up(number, error)

        async def ask_all() -> None:
            await all_of(ask_one(number) for number in [*self._servers])

        self._loop.run(ask_all())

    def release_memory(self) -> None:
        """Release the GPU memory of every server until `load`, which comes next. No effect on servers that cannot."""
        if self._leaves:
            self._loop.run(self._release_everywhere())

    async def _release_everywhere(self) -> None:
        await all_of(server.release_memory() for server in self._servers.values())

    def digests(self) -> list[HeldWeights]:
        """Return the digests of the tensors that each server holds."""
        return self._loop.run(self._digests())

    async def _digests(self) -> list[HeldWeights]:
        return [*await all_of(server.digests() for server in self._servers.values())]

    async def _load_everywhere(self, folder: Path) -> None:
        await all_of(self._load(number, folder) for number in [*self._servers])
        self._cache_is_empty = True
        self._server_of.clear()

    async def _load(self, server: int, folder: Path) -> None:
        try:
            load = self._servers[server].load if self._adapters is None else self._servers[server].load_adapter
            await load(folder, self._version)
        except DEAD as error:
            self._give_up(server, error)

    async def _asked(self, ask: _Ask[T], parts: Sequence[tuple[int, Sequence[int]]], *, empty_cache: bool) -> list[T]:
        """Return an answer to each request, in order; `parts` assigns the requests to servers."""
        self._require_going_on()
        if empty_cache and not self._cache_is_empty:
            await all_of(server.empty_cache() for server in self._servers.values())
        self._cache_is_empty = False
        limits = {number: asyncio.Semaphore(SLICES_IN_FLIGHT) for number in self._servers}

        async def part_of(server: int, part: Sequence[int]) -> list[T]:
            async with limits[server]:
                return await ask(self._servers[server], part)

        answers: dict[int, T] = {}
        for (_, part), answered in zip(parts, await all_of(part_of(*each) for each in parts), strict=True):
            answers.update(zip(part, answered, strict=True))
        return [answers[index] for index in range(len(answers))]


def split(places: Sequence[int], servers: Sequence[int], *, lockstep: bool) -> list[tuple[int, Sequence[int]]]:
    """Return the servers and the indices of their requests: one part each in lockstep, else slices in turn.

    In lockstep an attempt stays with its server, whichever others are still running.
    """
    if lockstep:
        parts = {
            server: [i for i, at in enumerate(places) if servers[at % len(servers)] == server] for server in servers
        }
        return [(server, part) for server, part in parts.items() if part]
    starts = range(0, len(places), SLICE)
    return [
        (servers[turn % len(servers)], range(start, min(start + SLICE, len(places))))
        for turn, start in enumerate(starts)
    ]
