"""A server that answers SGLang's HTTP requests as a script says, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Script = Callable[[str, dict[str, Any]], tuple[int, Any]]


class Hangup(Exception):
    """Raised by a script to close the connection without an answer."""


class ScriptedServer:
    """Listens from the start until `stop`."""

    def __init__(self, script: Script) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: set[str | None] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                outer.authorizations.add(self.headers.get("Authorization"))
                try:
                    status, answer = script(self.path, body)
                except Hangup:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.block_on_close = False
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End it; may be called again."""
        self.http.shutdown()
        self.http.server_close()

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.asked]


class Echo:
    """Completes every prompt by its own last token, with the weights that were loaded last.

    `fault` answers in place of /generate; the first `closes` of them get a closed connection; `look` is shown the folder
    of weights that are loaded.
    """

    def __init__(
        self,
        fault: Callable[[dict[str, Any]], tuple[int, Any]] | None = None,
        *,
        closes: int = 0,
        look: Callable[[Path], None] | None = None,
    ) -> None:
        self._version = "default"
        self._fault = fault
        self._closes = closes
        self._look = look

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/update_weights_from_disk":
            self._version = body["weight_version"]
            if self._look is not None:
                self._look(Path(body["model_path"]))
        if path != "/generate":
            return 200, {"success": True, "message": "done"}
        if self._closes:
            self._closes -= 1
            raise Hangup
        if self._fault is not None:
            return self._fault(body)
        return 200, [reply(prompt[-1], self._version) for prompt in body["input_ids"]]


def scores(body: dict[str, Any], version: str = "default") -> list[dict[str, Any]]:
    """What a server tells of the tokens that are there already: each is as likely as its number says, in tenths."""
    return [
        {
            "output_ids": [],
            "meta_info": {
                "finish_reason": {"type": "length", "length": 0},
                "weight_version": version,
                "input_token_logprobs": [
                    [-0.1 * token if place > start else None, token, None]
                    for place, token in enumerate(token_ids)
                    if place >= start
                ],
            },
        }
        for token_ids, start in zip(body["input_ids"], body["logprob_start_len"], strict=True)
    ]


def reply(token: int, version: str = "default", reason: dict[str, Any] | None = None) -> dict[str, Any]:
    """One completion of one token."""
    return {
        "output_ids": [token],
        "meta_info": {
            "finish_reason": reason or {"type": "length", "length": 1},
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": 1}],
            "output_token_logprobs": [[-0.1 * token, token, None]],
        },
    }
