"""A corpus that is made up, and a place on loopback for servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
from aiohttp import web

from dagrpo.files import write_parquet
from dagrpo.search import Passage

PASSAGES = (
    Passage(title="Anna Belt", text="Anna Belt was born in Torva. She works for Quill & Sons."),
    Passage(title="Torva", text="Torva is a town in Norland."),
    Passage(title="Quill & Sons", text="Quill & Sons is a firm in Harrow."),
    Passage(title="Harrow", text="Harrow is a town in Suland."),
)


def corpus(path: Path, passages: tuple[Passage, ...] = PASSAGES) -> Path:
    columns = {"title": [passage.title for passage in passages], "text": [passage.text for passage in passages]}
    write_parquet(path, pa.table(columns, pa.schema([("title", pa.string()), ("text", pa.string())])))
    return path


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """The address of an application while it listens on loopback."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/retrieve"
    finally:
        await runner.cleanup()


def answering(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_post("/retrieve", handler)
    return app


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


async def flood(request: web.Request) -> web.StreamResponse:
    """100 MB, unless the other side hangs up before."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" " * 1_000_000)
    return response
