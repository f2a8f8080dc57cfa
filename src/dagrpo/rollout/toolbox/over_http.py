"""Requests to the servers behind tools. Whatever a server does, an answer or a failure comes in bounded time and memory.

Not here: what an answer means.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrpo.rollout.tools import InfrastructureFailure

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MOST_BYTES = 8 << 20  # of an answer
QUOTED = 200  # bytes of an answer that a sentence quotes


async def posted(session: "ClientSession", url: str, body: Mapping[str, Any], *, seconds: float) -> bytes:
    """What a server answers to a request in JSON. InfrastructureFailure names the server and what it did."""
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
    """The first bytes of an answer, to be quoted."""
    return answer[:QUOTED].decode(errors="replace")
