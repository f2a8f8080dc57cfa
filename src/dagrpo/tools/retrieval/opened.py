"""The open search tool: searches, and results as the policy reads them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dagrpo.tools import CallContext, StatelessTool, ToolFailure
from dagrpo.tools.retrieval import LONGEST_QUERY

NOTHING = "Nothing found."
Style = Literal["documents", "plain"]


class Search(StatelessTool):
    """Searches by a function from a query to the contents of passages, and writes them for the policy."""

    def __init__(self, find: Callable[[str], Awaitable[Sequence[str]]], style: Style) -> None:
        self._find = find
        self._style = style

    async def call(self, function: str, arguments: Mapping[str, Any], context: CallContext) -> str:
        """Return the passages as text. Raises ToolFailure for a query that is too long, InfrastructureFailure if a server failed."""
        query = arguments["query"]
        if len(query) > LONGEST_QUERY:
            raise ToolFailure(f"The query has more than {LONGEST_QUERY} characters.")
        return written(await self._find(query), self._style)


def written(found: Sequence[str], style: Style) -> str:
    """Return the contents of passages for the policy: as verl writes them, or their texts alone."""
    parts = [contents.partition("\n")[::2] for contents in found]
    if style == "plain":
        return "\n".join(text for _, text in parts) or NOTHING
    return "\n\n".join(f"Doc {n} (Title: {title})\n{text}" for n, (title, text) in enumerate(parts, 1)) or NOTHING


async def local_search(corpus: Path, most: int) -> Callable[[str], Awaitable[Sequence[str]]]:
    """Return a function from a query to the contents of at most `most` passages, best first. Raises UserError for other files."""
    from dagrpo.tools.retrieval.index import Index

    index = await asyncio.to_thread(Index.read, corpus)

    async def find(query: str) -> list[str]:
        found = await asyncio.to_thread(index.search, query, most)
        return [index.passages[row].contents for row, _ in found]

    return find
