"""Server of Sandbox Fusion's HTTP protocol over our own sandboxes, on loopback.

`python -m dagrpo_sandbox.server --port 8080`. Of the protocol (github.com/bytedance/SandboxFusion, sandbox/server/sandbox_api.py) it
has POST /run_code for Python, without other languages, files and notebooks. Needs aiohttp.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from dagrpo_sandbox.pool import SandboxPool, run_cold
from dagrpo_sandbox.records import Limits, Result

LOOPBACK = "127.0.0.1"
POOL = web.AppKey("pool", SandboxPool)
LIMITS = web.AppKey("limits", Limits)
TURNS = web.AppKey("turns", asyncio.Semaphore)  # of programs, warm and cold
HOSTS = ("127.0.0.1", "localhost")
REQUEST_BYTES = 4 << 20
BODY_SECONDS = 10.0  # for a request to arrive
UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError, web.RequestPayloadError)


async def run_code(request: web.Request) -> web.Response:
    """Run `code`; limits below the server's own are kept, higher ones are lowered to it."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.json()
        code, language = body["code"], body["language"]
        limits = _limits(request.app[LIMITS], body)
    except TimeoutError:
        return web.json_response({"detail": f"the request took more than {BODY_SECONDS:g} s to arrive"}, status=408)
    except UNREADABLE as error:
        return web.json_response({"detail": f"{type(error).__name__}: {error}"}, status=422)
    if not isinstance(code, str) or language != "python":
        return web.json_response({"detail": "code is a text, and language is python: there is no other"}, status=422)
    async with request.app[TURNS]:
        warm = limits == request.app[LIMITS]
        return web.json_response(answer(await (request.app[POOL].run(code) if warm else run_cold(code, limits))))


@web.middleware
async def refuse_web_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a browser sends for a page, whose name may point to this machine: it bears an origin, or another host."""
    if "Origin" in request.headers or request.host.partition(":")[0].lower() not in HOSTS:
        return web.json_response(
            {"detail": "requests of web pages are refused: name 127.0.0.1, and no origin"}, status=403
        )
    return await handler(request)


def answer(result: Result) -> dict[str, Any]:
    """Return a result in the protocol's words. It has no status for memory and output limits: these are failed programs."""
    fine = result.status == "ok"
    timed_out = result.status == "timed_out"
    run_result = {
        "status": "TimeLimitExceeded" if timed_out else "Finished",
        "execution_time": result.seconds,
        "return_code": None if timed_out else 0 if fine else 1,
        "stdout": result.stdout,
        "stderr": "" if result.status in ("ok", "error", "timed_out") else result.status,
    }
    status = "Success" if fine else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": run_result, "files": {}}


def _limits(own: Limits, body: Any) -> Limits:
    seconds, memory = float(body.get("run_timeout", own.seconds)), int(body.get("memory_limit_MB", -1))
    if not seconds > 0:  # nor NaN
        raise ValueError(f"run_timeout is {seconds}: it must be above 0")
    least = min(memory, own.memory_mb) if memory > 0 else own.memory_mb
    return replace(own, seconds=min(seconds, own.seconds), memory_mb=least)


def application(limits: Limits, size: int) -> web.Application:
    """Return the server, with a separate pool. At its start, raises SandboxUnavailable if nothing can be isolated."""

    async def pool(app: web.Application) -> AsyncIterator[None]:
        async with SandboxPool(limits, size=size) as app[POOL]:
            yield

    app = web.Application(client_max_size=REQUEST_BYTES, middlewares=[refuse_web_pages])
    app[TURNS] = asyncio.Semaphore(size)
    app[LIMITS] = limits
    app.cleanup_ctx.append(pool)
    app.router.add_post("/run_code", run_code)
    return app


def main() -> None:
    """Listen on 127.0.0.1 and no other address."""
    parser = argparse.ArgumentParser(description="Sandbox Fusion's protocol, on loopback.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--sandboxes", type=int, default=4, help="programs that run at the same time")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one program, at most")
    parser.add_argument("--memory-mb", type=int, default=512, help="of one program, at most")
    given = parser.parse_args()
    if given.sandboxes < 1:
        parser.error(f"--sandboxes is {given.sandboxes}: no program could run")
    limits = Limits(seconds=given.seconds, memory_mb=given.memory_mb)
    app = application(limits, given.sandboxes)
    web.run_app(app, host=LOOPBACK, port=given.port, handler_cancellation=True)  # a program ends when its client leaves


if __name__ == "__main__":
    main()
