"""Servers on loopback that answer as a test wants."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """The address of an application while it listens."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answering(path: str, handler: Handler) -> web.Application:
    """An application with one route."""
    app = web.Application()
    app.router.add_post(path, handler)
    return app


async def hang(request: web.Request) -> web.StreamResponse:
    """No answer."""
    await asyncio.sleep(600)
    raise AssertionError
