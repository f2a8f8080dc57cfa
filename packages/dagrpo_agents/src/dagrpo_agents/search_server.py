"""A search server in Search-R1's protocol, over a parquet file.

Every client that reaches the port may search, so the server listens on loopback unless another address is asked for. It has no
TLS, passwords or rate limit.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from dagrpo.tools.retrieval import LONGEST_QUERY, MOST_RESULTS
from dagrpo.tools.retrieval.index import Index

MOST_BYTES = 1 << 20  # of a request
MOST_QUERIES = 256  # of a request
FEW_RESULTS = 3  # for a query, when the request does not say

INDEX: web.AppKey[Index] = web.AppKey("index", Index)


def application(index: Index) -> web.Application:
    """Return the server, before it listens."""
    app = web.Application(client_max_size=MOST_BYTES)
    app[INDEX] = index
    app.router.add_post("/retrieve", retrieve)
    return app


def serve(corpus: Path, port: int, host: str) -> None:
    """Answer until interrupted. Raises UserError if the file is not a corpus."""
    index = Index.read(corpus)
    print(f"{len(index.passages)} passages at http://{host}:{port}/retrieve", flush=True)
    web.run_app(application(index), host=host, port=port, print=None, access_log=None)


async def retrieve(request: web.Request) -> web.Response:
    """Answer with one list of results for each query; a malformed request gets 422 and a message."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return _refusal("the body is not JSON")
    mistake = _mistake(body)
    if mistake:
        return _refusal(mistake)
    index, most = request.app[INDEX], body.get("topk") or FEW_RESULTS
    results = await asyncio.to_thread(lambda: [index.search(query, most) for query in body["queries"]])
    scored = bool(body.get("return_scores"))
    return web.json_response({"result": [[_written(index, hit, scored) for hit in hits] for hits in results]})


def _mistake(body: object) -> str:
    """Return the error message for a request; "" for a valid one."""
    if not isinstance(body, Mapping) or not isinstance(body.get("queries"), list):
        return "write an object with the key `queries`, a list of texts"
    queries, most = body["queries"], body.get("topk")
    if len(queries) > MOST_QUERIES or not all(
        isinstance(query, str) and len(query) <= LONGEST_QUERY for query in queries
    ):
        return f"`queries` is not a list of at most {MOST_QUERIES} texts of at most {LONGEST_QUERY} characters"
    if most is not None and (type(most) is not int or not 1 <= most <= MOST_RESULTS):
        return f"`topk` is not a whole number from 1 to {MOST_RESULTS}"
    return ""


def _refusal(mistake: str) -> web.Response:
    return web.json_response({"detail": f"This is no search: {mistake}."}, status=422)


def _written(index: Index, hit: tuple[int, float], scored: bool) -> dict[str, Any]:
    row, score = hit
    document = {"id": str(row), "contents": index.passages[row].contents}
    return {"document": document, "score": score} if scored else document
