"""Connections that have shown no key: bounded in number and time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

HOST = "127.0.0.1"
STRANGER_SECONDS = 10.0  # that a connection has to send its headers, with a key
MOST_STRANGERS = 256  # connections that have not; the oldest gives way
logger = logging.getLogger(__name__)
logger.addFilter(  # an error over a malformed request quotes it, and perhaps a key in it
    lambda it: not it.exc_info or not isinstance(it.exc_info[1], HttpProcessingError | web.RequestPayloadError)
)


class Strangers:
    """Connections of a server that have not shown a key yet."""

    def __init__(self) -> None:
        self._timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connect(self, server: web.Server) -> web.RequestHandler:
        """Return the protocol of a new connection, which is closed unless it shows a key in time."""
        self.limit(connection := server())
        return connection

    def limit(self, connection: web.RequestHandler) -> None:
        """Close the connection unless it shows a key in time."""
        loop = asyncio.get_running_loop()
        lately = loop.time() + STRANGER_SECONDS - 1  # a connection gets its transport in the next turn of the loop
        gone = [each for each, timer in self._timers.items() if each.transport is None and timer.when() < lately]
        for stranger in gone:
            self.welcome(stranger)
        while len(self._timers) >= MOST_STRANGERS:
            self._turn_away(next(iter(self._timers)))
        self._timers[connection] = loop.call_later(STRANGER_SECONDS, self._turn_away, connection)

    def welcome(self, connection: web.RequestHandler) -> None:
        """Keep a connection that has shown a key."""
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _turn_away(self, connection: web.RequestHandler) -> None:
        self.welcome(connection)
        connection.force_close()


@asynccontextmanager
async def listen(
    application: web.Application, connect: Callable[[web.Server], web.RequestHandler], port: int = 0
) -> AsyncIterator[int]:
    """Serve an application at 127.0.0.1, with the protocols that `connect` returns for new connections; yield its port."""
    runner = web.AppRunner(application, access_log=None, logger=logger, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None, "it has been set up"
    try:
        opened = await asyncio.get_running_loop().create_server(lambda: connect(server), HOST, port)
        with closing(opened) as listening:
            yield int(listening.sockets[0].getsockname()[1])
    finally:
        await runner.cleanup()
