"""Requests of sessions that sample freely, over several servers."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.background import BackgroundLoop, all_of
from dagrpo.engine.errors import RequestsAborted, ServerError, ServerGone, ServerLost, ServerUnreachable
from dagrpo.engine.interface import Aborted, Client, WeightVersion
from dagrpo.utils.console import say

SLICE = 64  # requests per HTTP request when not in lockstep
SECONDS_TO_ABORT = 0.1  # until unfinished requests are aborted again: the server may not have known them yet
DEAD = (ServerLost, ServerUnreachable)  # errors of a server that will not answer any more

_Key = tuple[int, str, bool]  # server, session, whether it can be aborted


@dataclass(slots=True, eq=False)
class _SharedRequest:
    """Requests of one HTTP request, and the future that all callers wait for until its last completion."""

    server: int
    requests: list[SamplingRequest] = field(default_factory=list)
    identifiers: list[str] = field(default_factory=list)  # of each, if it can be aborted
    completions: "asyncio.Future[list[Completion]]" = field(init=False)


class SessionServers:
    """Servers with the same weights, for sessions. A session stays with one server, which has its tokens in its cache."""

    def __init__(
        self, servers: Sequence[Client], loop: BackgroundLoop, version: WeightVersion, *, keeps_all: bool = False
    ) -> None:
        """Use servers that hold the weights `version`. `keeps_all`: the death of one is the end."""
        assert servers, "no server"
        self._servers = dict(enumerate(servers))  # those that answer, by number
        self._lost: dict[int, Client] = {}  # those that ran elsewhere and could not be reached any more, by number
        self._loop = loop
        self._version = version
        self._keeps_all = keeps_all
        self._cache_is_empty = False
        self._server_of: dict[str, int] = {}  # by session
        self._gathering: dict[_Key, _SharedRequest] = {}  # that others can join
        self._abortable: dict[_SharedRequest, str] = {}  # on their way, and their sessions
        self._interrupted = False

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return one completion. Requests of one session go to one server.

        Requests of a session at the same moment, such as the first turns of a group, are one HTTP request, up to SLICE of
        them: one for each costs several times as much, and one for several sessions would wait for the slowest of all.
        `abortable`: they can be aborted. Raises ServerGone if that server died and others are left.
        """
        # Two HTTP requests with pictures at the same time end a server that samples deterministically (see sglang/command.py), so
        # that the pictures of all sessions that ask at the same moment share one.
        together = request.pictures is not None and not abortable
        key = (self._server_for(session), "" if together else session, abortable)
        shared = self._gathering.get(key) or self._gather(key)
        shared.requests.append(request)
        if abortable:
            shared.identifiers.append(uuid4().hex)
        index = len(shared.requests) - 1
        if len(shared.requests) == SLICE:
            del self._gathering[key]
        return (await asyncio.shield(shared.completions))[index]

    def _server_for(self, session: str) -> int:
        if self._server_of.get(session) not in self._servers:
            numbers = [*self._servers]
            self._server_of[session] = numbers[len(self._server_of) % len(numbers)]
        return self._server_of[session]

    def _gather(self, key: _Key) -> _SharedRequest:
        server, session, abortable = key
        shared = _SharedRequest(server)
        shared.completions = asyncio.ensure_future(self._send_gathered(key, shared))
        self._gathering[key] = shared
        if abortable:
            self._abortable[shared] = session
            shared.completions.add_done_callback(lambda _: self._abortable.pop(shared))
        return shared

    async def _send_gathered(self, key: _Key, shared: _SharedRequest) -> list[Completion]:
        await asyncio.sleep(0)  # until every caller that is about to ask has done so
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

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        """Abort the abortable requests of these sessions; return what was sampled for them."""
        found = [(session, shared) for shared, session in self._abortable.items() if session in sessions]
        completions = await all_of(self._aborted(shared) for _, shared in found)
        return [
            Aborted(session=session, request=request, completion=completion)
            for (session, shared), own in zip(found, completions, strict=True)
            for request, completion in zip(shared.requests, own, strict=False)  # none: no server has answered
        ]

    async def _aborted(self, shared: _SharedRequest) -> Sequence[Completion]:
        """Abort a request until it is over; return what was sampled. Its error matters only if no server is left."""
        while not shared.completions.done():
            if shared.server in self._servers:
                await self._abort_at(shared.server, shared.identifiers)
            await asyncio.wait([shared.completions], timeout=SECONDS_TO_ABORT)
        try:
            return shared.completions.result()
        except RequestsAborted as aborted:
            return aborted.completions
        except ServerError:
            return ()

    async def _abort_at(self, server: int, identifiers: Sequence[str]) -> None:
        try:
            await self._loop.join(self._servers[server].abort(identifiers))
        except DEAD as error:
            self._give_up(server, error)

    def interrupt(self) -> None:
        """Make calls that another thread waits for raise an error, and send no further requests."""
        self._interrupted = True
        self._loop.cancel()

    def _require_going_on(self) -> None:
        if self._interrupted:
            raise ServerError("The run was stopped while its rollouts were sampled: run the same command to resume it.")

    def _give_up(self, server: int, error: ServerLost | ServerUnreachable) -> None:
        """Continue without a server. Raises its error if it was the last one, or all are needed."""
        if self._keeps_all or [*self._servers] == [server]:
            raise error
        if (client := self._servers.pop(server, None)) is not None:
            if isinstance(error, ServerUnreachable):
                self._lost[server] = client
            say(f"{str(error).removesuffix('.')}. Its work is repeated by the other {len(self._servers)}.")
