"""A corpus that is made up, and a place on loopback for servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
from aiohttp import web
from tests import loopback

from dagrpo.tools.retrieval import Passage
from dagrpo.utils.tables import write_parquet

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


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """Where to ask a search server."""
    async with loopback.listening(app) as address:
        yield f"{address}/retrieve"


def answering(handler: loopback.Handler) -> web.Application:
    return loopback.answering("/retrieve", handler)


async def flood(request: web.Request) -> web.StreamResponse:
    """100 MB, unless the other side hangs up before."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" " * 1_000_000)
    return response
