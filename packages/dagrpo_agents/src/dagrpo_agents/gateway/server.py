"""HTTP server of the gateway: authentication, sessions and error replies."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiohttp import web

from dagrpo.rollout.session import Session
from dagrpo.utils.console import say
from dagrpo_agents.gateway.conversation import Conversation, Reply, completion, events
from dagrpo_agents.gateway.requests import ChatRequest, Refused, read_request
from dagrpo_agents.strangers import HOST, Strangers, listen

MODEL = "policy"  # by which the policy is listed; it answers to every name
MOST_BYTES = 8 << 20  # of a request
SHORTEST_NAP = 0.05
Result = TypeVar("Result")


class Access:
    """Open session, with the address and the key that a program needs to ask for turns. `key` stays secret from other programs."""

    def __init__(self, session: Session, address: str, identifier: str, key: str) -> None:
        self.identifier = identifier
        self.key = key
        self.base_url = f"{address}/sessions/{identifier}/v1"
        self.conversation = Conversation(session)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking: set[asyncio.Task[Reply]] = set()
        self._started = self._asked_since = time.monotonic()
        self._asked_seconds = 0.0

    async def answer(self, request: ChatRequest) -> Reply:
        """Return the policy's turn, which is completed even if the program stops listening. Raises Refused if there is no turn."""
        if self._broken.cancelled():
            raise _no_session()
        if not self._asking:
            self._asked_since = time.monotonic()
        task = asyncio.create_task(self.conversation.answer(request))
        self._asking.add(task)
        task.add_done_callback(self._answered)
        await asyncio.wait([task])
        if task.cancelled():
            raise _no_session()
        if (error := task.exception()) is not None and not isinstance(error, Refused):
            self._break(error)
            raise Refused("The policy cannot be asked.", status=503, code="engine_error")
        return task.result()

    def _answered(self, task: asyncio.Task[Reply]) -> None:
        self._asking.discard(task)
        if not self._asking:
            self._asked_seconds += time.monotonic() - self._asked_since

    def own_seconds(self) -> float:
        """Return the program's working seconds, without time in which the policy is asked: the engine also serves others."""
        until = self._asked_since if self._asking else time.monotonic()
        return until - self._started - self._asked_seconds

    async def _out_of_time(self, seconds: float) -> None:
        while (remaining := seconds - self.own_seconds()) > 0:
            await asyncio.sleep(max(remaining, SHORTEST_NAP))

    def _break(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    async def unless_broken(self, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
        """Return the result of `work`. Raises TimeoutError after `seconds` own seconds, and the engine's error at once."""
        task, timer = asyncio.create_task(work), asyncio.create_task(self._out_of_time(seconds))
        either: list[asyncio.Future[Any]] = [task, timer, self._broken]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            task.cancel()
            timer.cancel()
            await asyncio.wait([task, timer])

    async def close(self) -> None:
        """Cancel pending requests, and refuse those that are still being received."""
        self._broken.cancel()
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking)


class Gateway:
    """Open sessions by identifier."""

    def __init__(self) -> None:
        self.address = ""  # http://127.0.0.1:<port>, once it listens
        self._open: dict[str, Access] = {}
        self._reported: set[str] = set()
        self._strangers = Strangers()
        self._guests: dict[web.RequestHandler, Access] = {}  # connections, with the session of their last request

    @asynccontextmanager
    async def admit(
        self, session: Session, *, identifier: str | None = None, key: str | None = None
    ) -> AsyncIterator[Access]:
        """Open the session to programs with its identifier and its key, which are secrets created here.

        A program that cannot receive them brings its own: an identifier of its choice, and a key for all its sessions.
        """
        access = Access(
            session, self.address, identifier or secrets.token_urlsafe(24), key or f"dagrpo-{secrets.token_urlsafe(32)}"
        )
        self._open[access.identifier] = access
        try:
            yield access
        finally:
            del self._open[access.identifier]
            for connection in [each for each, last in self._guests.items() if last is access]:
                del self._guests[connection]
                if connection.transport is not None:
                    self._strangers.limit(connection)
            await access.close()

    def connect(self, server: web.Server) -> web.RequestHandler:
        """Return the protocol of a new connection, which is closed unless it shows a key in time."""
        self._guests = {each: last for each, last in self._guests.items() if each.transport is not None}
        return self._strangers.connect(server)

    def _welcome(self, http: web.Request, access: Access) -> None:
        self._guests[http.protocol] = access
        self._strangers.welcome(http.protocol)

    def application(self) -> web.Application:
        """Return the application with its routes."""
        application = web.Application(client_max_size=MOST_BYTES, middlewares=[_errors_as_json])
        for prefix in ("/sessions/{identifier}/v1", "/v1"):
            application.router.add_post(f"{prefix}/chat/completions", self._chat)
            application.router.add_get(f"{prefix}/models", self._models)
        return application

    async def _chat(self, http: web.Request) -> web.Response:
        access = self._access(http)
        if "Content-Encoding" in http.headers:
            raise Refused("Content-Encoding is not supported: send the body uncompressed.", code="encoding")
        again = http.headers.get("X-Stainless-Retry-Count", "0") != "0"  # OpenAI's clients count their retries
        request = await asyncio.to_thread(read_request, await http.read(), again=again)
        self._tell(request.ignored)
        reply = await access.answer(request)
        if request.stream:
            return web.Response(body=events(reply, request), content_type="text/event-stream")
        return web.json_response(completion(reply, request))

    async def _models(self, http: web.Request) -> web.Response:
        key = _key(http)
        opened = [access for access in self._open.values() if secrets.compare_digest(access.key.encode(), key)]
        if not opened:
            raise _no_session()
        self._welcome(http, opened[-1])
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "dagrpo"}]})

    def _access(self, http: web.Request) -> Access:
        """Return the session of a request. An unknown session and a wrong key are refused alike."""
        key = _key(http)
        identifier = http.match_info.get("identifier") or http.headers.get("X-Session-ID") or ""
        access = self._open.get(identifier)
        if access is None or not secrets.compare_digest(access.key.encode(), key):
            raise _no_session()
        self._welcome(http, access)
        return access

    def _tell(self, ignored: tuple[str, ...]) -> None:
        new = set(ignored) - self._reported
        if new:
            self._reported |= new
            say(f"A program sets {', '.join(sorted(new))}, which is ignored: params.yaml says how to sample.")


def _key(http: web.Request) -> bytes:
    scheme, _, key = http.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise Refused("Send the session's key: Authorization: Bearer <key>.", status=401, code="invalid_api_key")
    return key.strip().encode(errors="surrogateescape")


def _no_session() -> Refused:
    return Refused("The session is unknown or over, or the key is wrong.", status=404, code="no_session")


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        error = refused
    except web.HTTPRequestEntityTooLarge:
        error = Refused(f"The body is longer than {MOST_BYTES >> 20} MiB.", status=413, code="too_large")
    except web.HTTPException as other:
        error = Refused(f"{request.method} {request.path}: {other.reason}.", status=other.status, code="no_route")
    return web.json_response(error.body, status=error.status)


@asynccontextmanager
async def open_gateway() -> AsyncIterator[Gateway]:
    """Open a gateway that listens on a free port of 127.0.0.1."""
    gateway = Gateway()
    async with listen(gateway.application(), gateway.connect) as port:
        gateway.address = f"http://{HOST}:{port}"
        yield gateway
