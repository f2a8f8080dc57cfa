"""Client of Search-R1's protocol.

A server's answer or failure arrives within bounds of time and memory, whatever the server does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dagrpo.core.untrusted_json import read_json
from dagrpo.tools import InfrastructureFailure

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession


MOST_BYTES = 8 << 20  # of an answer
QUOTED = 200  # bytes of an answer that a sentence quotes


async def posted(session: "ClientSession", url: str, body: Mapping[str, Any], *, seconds: float) -> bytes:
    """Return a server's answer to a request in JSON. Raises InfrastructureFailure, with the server and its fault."""
    from aiohttp import ClientError, ClientTimeout

    try:
        async with session.post(url, json=body, timeout=ClientTimeout(total=seconds)) as response:
            return await _bounded(response, url)
    except TimeoutError:
        raise InfrastructureFailure(f"{url} did not answer within {seconds:g} s.") from None
    except (ClientError, OSError) as error:
        raise InfrastructureFailure(f"{url} cannot be asked: {error}") from error


async def _bounded(response: "ClientResponse", url: str) -> bytes:
    answer = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        answer += chunk
        if len(answer) > MOST_BYTES:
            response.close()
            raise InfrastructureFailure(f"{url} answered with more than {MOST_BYTES} bytes.")
    if response.status != 200:
        raise InfrastructureFailure(f"{url} answered {response.status}: {beginning(answer)}")
    return bytes(answer)


def beginning(answer: bytes | bytearray) -> str:
    """Return the first bytes of an answer, to be quoted."""
    return answer[:QUOTED].decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a search: time, queries and results."""

    topk: int  # passages
    seconds: float  # for one request
    retries: int  # of a request that failed
    cached: int  # queries whose results are kept


class SearchClient:
    """Client of one server, with a cache of the last results."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        self._known: OrderedDict[str, list[str]] = OrderedDict()

    async def __aenter__(self) -> Self:
        from aiohttp import ClientSession

        self._session = ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._session.close()

    async def search(self, query: str) -> list[str]:
        """Return the contents of passages, best first. Raises InfrastructureFailure naming the server and its fault."""
        if query not in self._known:
            self._known[query] = await self._request_with_retries(query)
        self._known.move_to_end(query)
        contents = self._known[query]
        while len(self._known) > self._limits.cached:
            self._known.popitem(last=False)
        return contents

    async def _request_with_retries(self, query: str) -> list[str]:
        for retry in range(self._limits.retries):
            try:
                return await self._request(query)
            except InfrastructureFailure:
                await asyncio.sleep(0.1 * 2**retry)
        return await self._request(query)

    async def _request(self, query: str) -> list[str]:
        body = {"queries": [query], "topk": self._limits.topk, "return_scores": True}
        return self._contents(await posted(self._session, self._url, body, seconds=self._limits.seconds))

    def _contents(self, answer: bytes) -> list[str]:
        try:
            (results,) = read_json(answer)["result"]
            return [_contents_of(result) for result in results[: self._limits.topk]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InfrastructureFailure(
                f"{self._url} did not answer in Search-R1's protocol: {beginning(answer)}"
            ) from None


def _contents_of(result: Mapping[str, Any]) -> str:
    """Return the contents of a passage, with its score beside it or without."""
    contents = result.get("document", result)["contents"]
    if not isinstance(contents, str):
        raise TypeError
    return contents
