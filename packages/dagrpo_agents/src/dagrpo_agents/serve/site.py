"""Page and endpoints of served policies, on loopback."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from dagrpo.core.errors import UserError
from dagrpo.core.untrusted_json import read_json
from dagrpo_agents.gateway.server import open_gateway
from dagrpo_agents.serve.policy import Policy
from dagrpo_agents.strangers import HOST, Strangers, listen

HERE = Path(__file__).parent
MOST_BYTES = 1 << 20  # of a request
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """The page's requests, each with the key that the page's address carries."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.key = secrets.token_urlsafe(24)
        self.strangers = Strangers()
        self._policies = {policy.name: policy for policy in policies}

    def application(self) -> web.Application:
        """Return the application with its routes."""
        application = web.Application(client_max_size=MOST_BYTES, middlewares=[self._checked])
        application.router.add_get("/", _file("page.html.j2", "text/html"))
        application.router.add_get("/page.js", _file("page.js", "text/javascript"))
        application.router.add_post("/policies", self._list)
        application.router.add_post("/problem", self._problem)
        application.router.add_post("/answer", self._answer)
        application.router.add_post("/forget", self._forget)
        return application

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request without the key; the page itself, which has no secret, needs none."""
        if request.method == "POST" and not secrets.compare_digest(
            request.headers.get("Authorization", "").encode(errors="replace"), f"Bearer {self.key}".encode()
        ):
            return _refused("The key is missing or wrong: open the address that `dagrpo serve` printed.", 401)
        if request.method == "POST":
            self.strangers.welcome(request.protocol)
        try:
            return await handler(request)
        except (UserError, ValueError, LookupError, TypeError) as error:  # a request of another form
            return _refused(str(error), 400)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(list(self._policies))

    async def _problem(self, request: web.Request) -> web.Response:
        row = next(iter(self._policies.values())).problem(int((await _json(request))["number"]))
        text = next(message["content"] for message in reversed(row.prompt) if message["role"] == "user")
        return web.json_response({"text": text, "ground_truth": row.ground_truth})

    async def _answer(self, request: web.Request) -> web.Response:
        asked = await _json(request)
        policy, text, greedy = self._policies[asked["policy"]], str(asked["text"]), asked["greedy"] is True
        return web.json_response(await asyncio.to_thread(policy.answer, text, greedy=greedy))

    async def _forget(self, request: web.Request) -> web.Response:
        for policy in self._policies.values():
            await asyncio.to_thread(policy.forget)
        return web.json_response({})


async def _json(request: web.Request) -> dict[str, Any]:
    value = await asyncio.to_thread(read_json, await request.text())
    if not isinstance(value, dict):
        raise TypeError("The body is not a JSON object.")
    return value


def _refused(message: str, status: int) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _file(name: str, kind: str) -> Handler:
    async def send(request: web.Request) -> web.Response:
        return web.Response(text=(HERE / name).read_text(), content_type=kind, headers=HEADERS)

    return send


def run_site(policies: Sequence[Policy], port: int) -> None:
    """Serve the page and the endpoints until Ctrl-C. Raises UserError if the port is taken."""
    try:
        asyncio.run(_serve(policies, port))
    except KeyboardInterrupt:
        print()
    except OSError as error:
        raise UserError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}): choose another with --port."
        ) from None


async def _serve(policies: Sequence[Policy], port: int) -> None:
    site = Site(policies)
    async with AsyncExitStack() as stack:
        of_page = await stack.enter_async_context(listen(site.application(), site.strangers.connect, port))
        print(f"Page: http://{HOST}:{of_page}/#{site.key}")
        gateway = await stack.enter_async_context(open_gateway())
        for policy in policies:
            access = await stack.enter_async_context(
                gateway.admit(policy.session(), identifier=policy.name, key=site.key)
            )
            print(
                f"OpenAI endpoint of the {policy.name} policy: OPENAI_BASE_URL={access.base_url} OPENAI_API_KEY={site.key}"
            )
        print("Ctrl-C ends it.", flush=True)
        await asyncio.Event().wait()
