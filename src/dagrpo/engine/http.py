"""HTTP connections to a server of an engine."""

import asyncio
import io
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from dagrpo.core.escape import one_line
from dagrpo.core.untrusted_json import read_json
from dagrpo.engine.errors import ServerAway, ServerError, ServerLost, ServerUnreachable

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0  # a connection is kept for; SGLang's server closes one after 5
MOST_BYTES_ELSEWHERE = 1 << 30  # of an answer, by a server that this process has not started
LONGEST_MESSAGE = 300  # characters of a server's text
COUNT_SECONDS = 30.0  # until a server has given its counts
_TIMESTAMP = re.compile(rb'"timestamp": ?[^,}]*')  # changes while nothing else does
DIAGNOSIS_SECONDS = 5.0  # until a process whose connection broke can be seen to be dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and key of a server."""

    address: str  # such as http://127.0.0.1:30000
    api_key: str | None = None
    # Returns why the server does not answer, None for an unknown reason; None: it runs elsewhere.
    diagnose: Callable[[], str | None] | None = None
    comes_back: bool = False  # it runs on a node of this training, which may start it again


class HttpServer:
    """Connections to one server."""

    def __init__(self, endpoint: Endpoint, timeout: float, counts_page: str | None = None) -> None:
        """Prepare connections.

        `timeout`: seconds without progress, after which a request fails (`_answer_while_it_works`). `counts_page`: path of a page with
        numbers that change while the server works, such as those of its tokens.
        """
        self.address = endpoint.address.rstrip("/")
        self._diagnose = endpoint.diagnose
        self._counts_page = counts_page
        self._counted: bytes | None = None  # the last counts
        self._counting = asyncio.Lock()
        self._progress = 0.0  # the time of the last answer or of a change of the counts, in seconds
        self._unreachable = ServerAway if endpoint.comes_back else ServerUnreachable
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if endpoint.api_key is not None:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._opened: aiohttp.ClientSession | None = None  # by the first request, as it belongs to an event loop
        self._death: ServerLost | ServerUnreachable | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    def forget_death(self) -> None:
        """Send the next request also to a server that has died: another may have been started in its place."""
        self._death = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = self._with(aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS))
        return self._opened

    def _with(self, connections: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connections,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            auto_decompress=False,  # a compressed body is refused by its form
            trust_env=False,  # a proxy is not asked for what is on this machine or beside it
        )

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """Return the body of the answer to a request.

        A server may close an idle connection just before its reuse: the request is then sent again on a new one. Requests to a
        server that has died before fail at once.
        """
        if self._death is not None:
            raise type(self._death)(str(self._death))
        url, content = self.address + path, json.dumps(body).encode()
        try:
            status, answer = await self._answer_while_it_works(url, content)
        except aiohttp.ClientError as error:  # before TimeoutError, which that of a connection is, too
            if (death := await self._diagnosis()) is not None:
                self._death = ServerLost(death)
            else:
                self._death = self._unreachable(f"{self.address} cannot be reached: {_cause(error)}")
            raise self._death from None
        except TimeoutError:
            raise ServerError(
                f"{self.address} made no progress for {self._timeout:g} s (runtime.engine.request_timeout): no request was answered and "
                "no token written. See its log; if it is only slow, raise the limit."
            ) from None
        if status != 200:
            raise ServerError(f"{self.address} refused {path.partition('?')[0]} ({status}): {message_of(answer)}")
        return answer

    async def _answer_while_it_works(self, url: str, content: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer.

        The age of a request is no reason to end it: it may wait for hours behind others. Raises TimeoutError if the server neither
        answers any request nor changes its counts for one to two times the limit.
        """
        began = time.monotonic()
        request = asyncio.ensure_future(self._answer_on_an_open_connection(url, content))
        try:
            while True:
                quiet = time.monotonic() - max(began, self._progress)
                if (await asyncio.wait({request}, timeout=max(0.0, self._timeout - quiet)))[0]:
                    answered = request.result()
                    self._progress = time.monotonic()
                    return answered
                if not await self._works(began):
                    raise TimeoutError
        finally:
            request.cancel()

    async def _works(self, since: float) -> bool:
        """Return True if the server has made progress since its counts were last asked; one request asks for all that wait."""
        async with self._counting:
            if time.monotonic() - max(since, self._progress) < self._timeout:
                return True
            counts = await self._counts()
            if counts is None or counts == self._counted:
                return False
            self._counted, self._progress = counts, time.monotonic()
            return True

    async def _counts(self) -> bytes | None:
        """Return the counts of the server without their time; None if it has none or does not answer."""
        if self._counts_page is None:
            return None
        try:
            async with asyncio.timeout(COUNT_SECONDS), self._with(aiohttp.TCPConnector(force_close=True)) as new:
                status, page = await self._answered(new, self.address + self._counts_page, None)
        except (aiohttp.ClientError, TimeoutError, ServerError):
            return None
        return _TIMESTAMP.sub(b"", page) if status == 200 else None

    async def _answer_on_an_open_connection(self, url: str, content: bytes) -> tuple[int, bytes]:
        try:
            return await self._answered(self._session, url, content)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            # Another idle connection may be closed, too.
            async with self._with(aiohttp.TCPConnector(force_close=True)) as new:
                return await self._answered(new, url, content)

    async def _answered(self, session: aiohttp.ClientSession, url: str, content: bytes | None) -> tuple[int, bytes]:
        """Return status and body of a POST with `content`, or of a GET if it is None.

        Raises ServerError for a body over the limit: a server elsewhere is not trusted with this memory.
        """
        method, data = ("GET", None) if content is None else ("POST", io.BytesIO(content))
        async with session.request(method, url, data=data, allow_redirects=False) as response:
            answer = bytearray()
            async for part in response.content.iter_any():
                answer += part
                if self._diagnose is None and len(answer) > MOST_BYTES_ELSEWHERE:
                    raise ServerError(
                        f"{self.address} answered with more than {MOST_BYTES_ELSEWHERE:,} bytes: it is not a server of this "
                        "engine, or of an unsupported version."
                    )
        return response.status, bytes(answer)

    async def _diagnosis(self) -> str | None:
        if self._diagnose is None:
            return None
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        while (sentence := self._diagnose()) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return sentence


MOST_MESSAGE_BYTES = 1 << 20  # of a refusal that are parsed


def message_of(data: bytes) -> str:
    """Return the message of a refusal on one line.

    Forms: {"message": ...}, {"error": {"message": ...}}, {"error_message": ...}, or plain text.
    """
    try:
        answer = read_json(data[:MOST_MESSAGE_BYTES])
    except ValueError:
        answer = text_of(data[:MOST_MESSAGE_BYTES])
    while isinstance(answer, dict):
        answer = answer.get("message") or answer.get("error") or answer.get("error_message") or json.dumps(answer)
    return one_line(str(answer), LONGEST_MESSAGE) or "without a reason"


def text_of(data: bytes) -> str:
    """Return bytes of an answer as text, without surrounding spaces."""
    return data.decode(errors="replace").strip()


def _cause(error: aiohttp.ClientError) -> str:
    """Return the system's message, such as "Connection refused", without asyncio's words round it."""
    number = error.errno if isinstance(error, aiohttp.ClientOSError) else None
    return os.strerror(number) if number and number > 0 else str(error) or type(error).__name__
