"""A stand-in for the hub: as much of its protocol as an upload needs, by LFS; Xet, its other road, speaks to other servers."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import huggingface_hub.constants
import pytest
from tests.models.hub import point_at

LARGE = (".safetensors", ".parquet")  # the real hub takes these by LFS


@dataclass
class Hub:
    """Repositories by `models/ORG/NAME` or `datasets/ORG/NAME`, and every request with its token."""

    status: int = 200  # of all answers
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    visibility: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # by sha256
    address: str = ""

    def answer(self, method: str, path: str, body: bytes) -> Any:
        parts = path.strip("/").split("/")
        if method == "PUT":
            self.objects[parts[-1]] = body
            return {}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
            self.repositories.setdefault(name, {})
            self.visibility.setdefault(name, asked["visibility"])
            return {"url": f"{self.address}/{name.removeprefix('models/')}"}
        if path == "/api/validate-yaml":
            return {"warnings": [], "errors": []}
        if "preupload" in parts:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [(each, "lfs" if each.endswith(LARGE) else "regular") for each in names]
            return {"files": [{"path": each, "uploadMode": mode, "shouldIgnore": False} for each, mode in modes]}
        if path.endswith("/info/lfs/objects/batch"):
            return {"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]}
        if "commit" in parts:
            return self._commit("/".join(parts[1:4]), body)
        raise AssertionError(f"{method} {path} is not of the protocol")

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        there = asked["oid"] in self.objects
        return asked | ({} if there else {"actions": {"upload": {"href": f"{self.address}/objects/{asked['oid']}"}}})

    def _commit(self, name: str, body: bytes) -> dict[str, str]:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.repositories[name][value["path"]] = self.objects[value["oid"]]
        return {"commitUrl": f"{self.address}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or self._chunks()
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        answer = {} if self.hub.status != 200 else self.hub.answer(self.command, path, body)
        content = json.dumps(answer).encode()
        self.send_response(self.hub.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST

    def _chunks(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub for huggingface_hub inside the block, which sends by LFS."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    point_at(hub.address, monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()
