"""HTTP requests to tool servers, bounded in time and memory.

A server's answer or failure arrives within these bounds, whatever the server does.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
