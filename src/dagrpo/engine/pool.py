"""Engine of several servers with the same weights.

Lockstep makes a batch repeatable to the bit. Each token depends on its request's seed, its position and the logits alone,
but logits round differently when a matrix product has other rows. So a lockstep batch goes to an idle server with an empty
cache, as one HTTP request: SGLang gives the requests of one HTTP request to its scheduler in one piece, and all that the
scheduler then does follows from them. Nothing else may use the server meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dagrpo.checkpoints.gather import free_cached
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.background import BackgroundLoop, all_of
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import Bucket, Client, Group, HeldWeights, WeightVersion, new_version
from dagrpo.engine.sessions import DEAD, SLICE, SessionServers
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder
from dagrpo.utils.console import say

SLICES_IN_FLIGHT = 8  # per server
T = TypeVar("T")
_Ask = Callable[[Client, Sequence[int]], Awaitable[list[T]]]


class ServerPool(SessionServers):
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
        group: Group | None = None,
    ) -> None:
        """Pool servers that hold the weights `version`, or get them with `load`.

        `leaves`: whether they can release their GPU memory (`release_memory`). `keeps_all`: whether the death of one is the end, as the
        assignment of requests to servers depends on their number.
        `adapters`: the folders of an adapter's versions, if `load` gets those. It is then called before any request.
        `buckets`: cuts weights into buckets of tensors that the servers can open; None: weights travel in the folder.
        `group`: in which buckets are broadcast, if they are.
        """
        super().__init__(servers, loop, version, keeps_all=keeps_all)
        self._folder = folder
        self._leaves = leaves
        self._adapters = adapters
        self._buckets = buckets
        self._group = group
        self._grouped: list[int] = []  # numbers of the servers in the group
        self._joined: Mapping[str, Any] | None = None  # fields of the latest group, which may still have members

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

        return self._loop.run(self._ask_all(ask, parts, empty_cache=lockstep and first_wave))

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order; see RolloutEngine."""
        parts = split(range(len(requests)), [*self._servers], lockstep=lockstep)

        async def ask(server: Client, part: Sequence[int]) -> list[tuple[float, ...]]:
            return await server.score([requests[i] for i in part], self._version)

        return self._loop.run(self._ask_all(ask, parts, empty_cache=lockstep))

    def load(self, weights: Tensors, version: str) -> None:
        """Load these weights, or this adapter, into every server, and check that all later answers come from them."""
        self._version = new_version(version)
        if self._buckets is not None and self._adapters is None:
            self._sync_tensors(weights, self._buckets(weights))
        else:
            self._load_folder(weights)
        self._cache_is_empty = True
        self._server_of.clear()

    def _load_folder(self, weights: Tensors) -> None:
        folder = self._folder.write(weights) if self._adapters is None else self._adapters.write(weights, self._version)
        if self._leaves:
            free_cached(weights)  # servers come back to the same GPUs, where the ranks keep what they have freed
        lost = [*self._lost]

        async def load_into(server: Client) -> None:
            await (server.load if self._adapters is None else server.load_adapter)(folder, self._version)

        self._everywhere(load_into)
        self._loop.run(self._take_back(lost, load_into))

    def _sync_tensors(self, weights: Tensors, buckets: Iterator[Bucket]) -> None:
        """Load weights into every server, bucket by bucket. After an error no server counts as having the new version."""
        if self._group is not None:
            self._loop.run(self._take_back([*self._lost], lambda server: server.empty_cache()))
            self._form(self._group)
        self._everywhere(lambda server: server.begin_sync())
        self._send_buckets(buckets)
        if self._leaves:
            free_cached(weights)  # of the buckets: now the servers' key-value caches come back
        self._everywhere(lambda server: server.end_sync())

    def _send_buckets(self, buckets: Iterator[Bucket]) -> None:
        numbers, self._grouped = self._grouped, []  # an error ends the group
        for bucket in buckets:
            version = self._version if bucket.is_last else None
            payloads = dict(zip(map(id, self._servers.values()), bucket.payloads([*self._servers]), strict=True))
            with bucket.sent():
                self._everywhere(
                    lambda server: server.load_bucket(payloads[id(server)], version),  # noqa: B023 - called at once
                    needs_all=self._group is not None,
                )
        self._grouped = numbers

    async def _take_back(self, lost: Sequence[int], ask: Callable[[Client], Awaitable[None]]) -> None:
        """Take back those of the lost servers that answer again: they get the weights of this sync before a request."""
        for number in lost:
            self._lost[number].reconnect()
            with suppress(ServerError):  # it is still away, or no server of this engine
                await ask(self._lost[number])
                self._servers[number] = self._lost.pop(number)
                say(f"Server {number + 1} answers again.")

    def _form(self, group: Group) -> None:
        """Form a new group if other servers answer than those of the present one."""
        if sorted(self._servers) == self._grouped:
            return
        if (former := self._joined) is not None:
            self._everywhere(lambda server: server.leave(former))
        numbers = sorted(self._servers)
        ranks = {id(self._servers[number]): group.rank_of(place) for place, number in enumerate(numbers)}
        self._grouped = []
        with group.formed(len(numbers)) as fields:
            self._joined = fields
            self._everywhere(lambda server: server.join(fields, ranks[id(server)]), needs_all=True)
        self._grouped = numbers

    def _everywhere(self, ask: Callable[[Client], Awaitable[None]], *, needs_all: bool = False) -> None:
        """Call every server at the same time; continue without those that die, unless the others of a group wait for them."""

        async def ask_one(number: int) -> None:
            try:
                await ask(self._servers[number])
            except DEAD as error:
                if needs_all:
                    raise
                self._give_up(number, error)

        async def ask_all() -> None:
            await all_of(ask_one(number) for number in [*self._servers])

        self._loop.run(ask_all())

    def release_memory(self) -> None:
        """Release the GPU memory of every server until `load`, which comes next. No effect on servers that cannot."""
        if self._leaves:
            self._everywhere(lambda server: server.release_memory())

    def digests(self) -> list[HeldWeights]:
        """Return the digests of the tensors that each server holds which answers, in the servers' order."""
        held: dict[int, HeldWeights] = {}

        async def ask(server: Client) -> None:
            held[id(server)] = await server.digests()

        self._everywhere(ask)
        return [held[id(server)] for server in self._servers.values()]

    async def _ask_all(self, ask: _Ask[T], parts: Sequence[tuple[int, Sequence[int]]], *, empty_cache: bool) -> list[T]:
        """Return an answer to each request, in order; `parts` assigns the requests to servers."""
        self._require_going_on()
        if empty_cache and not self._cache_is_empty:
            await all_of(server.empty_cache() for server in self._servers.values())
        self._cache_is_empty = False
        limits = {number: asyncio.Semaphore(SLICES_IN_FLIGHT) for number in self._servers}

        async def part_of(turn: int, server: int, part: Sequence[int]) -> list[T]:
            while True:
                async with limits[server]:
                    if server in self._servers:  # another part may have seen it die
                        try:
                            return await ask(self._servers[server], part)
                        except DEAD as error:
                            self._give_up(server, error)
                server = [*self._servers][turn % len(self._servers)]

        answers: dict[int, T] = {}
        works = [part_of(turn, *each) for turn, each in enumerate(parts)]
        for (_, part), answered in zip(parts, await all_of(works), strict=True):
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
