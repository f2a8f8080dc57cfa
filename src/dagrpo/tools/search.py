"""search: passages about a query.

They come from the task's own passages, from a corpus, or from a server in Search-R1's protocol.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dagrpo.core.errors import UserError
from dagrpo.core.section import Seconds
from dagrpo.core.urls import mistake_in_server
from dagrpo.tools import (
    CallContext,
    OpenTool,
    StatelessTool,
    Tool,
    ToolFailure,
    ToolPlace,
    ToolSection,
    function_of_text,
)
from dagrpo.tools.retrieval import LONGEST_QUERY, MOST_RESULTS
from dagrpo.tools.retrieval.client import Limits, SearchClient

NOTHING = "Nothing found."
Style = Literal["documents", "plain"]


class Search(StatelessTool):
    """Search tool over a function from a query to the contents of passages."""

    def __init__(self, find: Callable[[str], Awaitable[Sequence[str]]], style: Style) -> None:
        self._find = find
        self._style = style

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the passages as text. Raises ToolFailure for a query that is too long, InfrastructureFailure if a server failed."""
        query = arguments["query"]
        if len(query) > LONGEST_QUERY:
            raise ToolFailure(f"The query has more than {LONGEST_QUERY} characters.")
        return written(await self._find(query), self._style)


def written(results: Sequence[str], style: Style) -> str:
    """Return the contents of passages for the policy: as verl writes them, or their texts alone."""
    parts = [contents.partition("\n")[::2] for contents in results]
    if style == "plain":
        return "\n".join(text for _, text in parts) or NOTHING
    return "\n\n".join(f"Doc {n} (Title: {title})\n{text}" for n, (title, text) in enumerate(parts, 1)) or NOTHING


async def local_search(corpus: Path, most: int) -> Callable[[str], Awaitable[Sequence[str]]]:
    """Return a function from a query to the contents of at most `most` passages, best first. Raises UserError for other files."""
    from dagrpo.tools.retrieval.index import Index

    index = await asyncio.to_thread(Index.read, corpus)

    async def find(query: str) -> list[str]:
        results = await asyncio.to_thread(index.search, query, most)
        return [index.passages[row].contents for row, _ in results]

    return find


FUNCTION = function_of_text("search", "Search for passages about something.", "query", "What to search for.")


class Config(ToolSection):
    """Search over passages."""

    url: str | None = Field(
        None,
        description="URL of a server in Search-R1's protocol, such as http://127.0.0.1:8000/retrieve; null: no server.",
    )
    corpus: str | None = Field(
        None, description="Parquet file with the columns title and text; null: the task's own passages."
    )
    topk: Annotated[int, Field(ge=1, le=MOST_RESULTS)] = Field(3, description="Most passages of a result.")
    style: Literal["documents", "plain"] = Field(
        "documents",
        description="documents: `Doc 1 (Title: ...)` before each text, as verl writes it; plain: texts only.",
    )
    seconds: Seconds = Field(8.0, description="Time limit of one request to the server.")
    retries: Annotated[int, Field(ge=0, le=100)] = Field(2, description="Most retries of a failed request.")
    cached: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        10_000, description="Most queries whose results are cached."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.url and self.corpus:
            raise UserError("rollout.tools.search has a url and a corpus: remove one of them")
        if self.url and (mistake := mistake_in_server(self.url)):
            raise UserError(f"rollout.tools.search.url {mistake}: write it as http://127.0.0.1:8000/retrieve")
        return self


@asynccontextmanager
async def _open(config: Config, place: ToolPlace) -> AsyncIterator[OpenTool]:
    if config.url is None:
        corpus = Path(config.corpus) if config.corpus else place.passages
        if corpus is None:
            raise UserError(
                "No task, or not one alone, has passages: set rollout.tools.search.corpus or rollout.tools.search.url."
            )
        yield Search(await local_search(corpus, config.topk), config.style)
        return
    limits = Limits(topk=config.topk, seconds=config.seconds, retries=config.retries, cached=config.cached)
    async with SearchClient(config.url, limits) as client:
        yield Search(client.search, config.style)


TOOL = Tool(
    config=Config,
    functions=lambda config: [FUNCTION],
    open=_open,
    files=lambda config: [config.corpus] if config.corpus else [],
    repeatable=lambda config: config.url is None,
)
