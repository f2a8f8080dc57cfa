"""A stand-in for the hub: a server on this machine that speaks as much of its protocol as a download needs."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

REPOSITORY = "someone/small"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository at one commit; `files` may be changed by a test."""

    files: dict[str, bytes]
    requested: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # files that are announced, but not handed out
    cut_off: set[str] = field(default_factory=set)  # files of which the second half never comes

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        self.requested.append(f"{method} {path}")
        if path.startswith(f"/api/models/{REPOSITORY}/tree/{REVISION}"):
            return 200, {"Content-Type": "application/json"}, json.dumps(self._tree()).encode()
        if path == f"/api/models/{REPOSITORY}/revision/{REVISION}":
            return 200, {"Content-Type": "application/json"}, json.dumps({"id": REPOSITORY, "sha": REVISION}).encode()
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{REVISION}/")
        if method == "GET" and name in self.refused:
            return 403, {}, b""
        if name not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        headers = {"ETag": f'"{hashlib.sha1(self.files[name]).hexdigest()}"', "X-Repo-Commit": REVISION}
        return 200, headers, self.files[name]

    def _tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in self.files.items()
        ]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        status, headers, body = self.hub.answer(self.command, self.path.partition("?")[0])
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            cut_off = self.path.rpartition("/")[2] in self.hub.cut_off
            self.wfile.write(body[: len(body) // 2] if cut_off else body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""


@contextmanager
def serving(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub with one repository of these files, for whoever asks huggingface_hub inside the block."""
    hub = Hub(files=files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    point_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


def point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when it is set before huggingface_hub is imported."""
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
