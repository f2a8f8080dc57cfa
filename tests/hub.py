"""A stand-in for the Hugging Face hub on 127.0.0.1, which speaks as much of its protocol as a download needs."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlparse

import huggingface_hub.constants
import pytest


class Hub(ThreadingHTTPServer):
    """One repository at one commit. Any other commit does not exist. A test may change the files."""

    def __init__(
        self, kind: Literal["models", "datasets"], repository: str, commit: str, files: Mapping[str, bytes]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.commit = commit
        self.files = dict(files)
        self.api = f"/api/{kind}/{repository}"
        self.raw = f"/{'' if kind == 'models' else 'datasets/'}{repository}/resolve/"
        self.asked: list[str] = []  # "GET /path"
        self.refused: set[str] = set()  # files that are announced, but not handed out
        self.cut_off: set[str] = set()  # files of which the second half never comes

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def entries(self, folder: str = "") -> list[dict[str, object]]:
        """List the files and folders under a folder."""
        names = [name for name in self.files if name.startswith(folder)]
        folders = {str(parent) for name in names for parent in Path(name).parents if str(parent) not in (".", folder)}
        listed: list[dict[str, object]] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in sorted(folders)
        ]
        return listed + [
            {"type": "file", "oid": _sha1(self.files[n]), "size": len(self.files[n]), "path": n} for n in names
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        self.server.asked.append(f"POST {self.path}")
        if f"/paths-info/{self.server.commit}" not in self.path:
            return self._fail("RevisionNotFound")
        return self._send(json.dumps([each for each in self.server.entries() if each["path"] in wanted]).encode())

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlparse(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        tree = f"{hub.api}/tree/{hub.commit}"
        if path in (f"{hub.api}/revision/{hub.commit}", hub.api):
            siblings = [{"rfilename": name} for name in hub.files]
            return self._send(json.dumps({"id": hub.repository, "sha": hub.commit, "siblings": siblings}).encode())
        if path.startswith(tree):
            return self._send(json.dumps(hub.entries(path.removeprefix(tree).strip("/"))).encode())
        commit, _, name = path.removeprefix(hub.raw).partition("/")
        if not path.startswith(hub.raw) or commit != hub.commit:
            return self._fail("RevisionNotFound" if hub.repository in path else "RepoNotFound")
        if name in hub.refused and self.command == "GET":
            return self._fail("", 403)
        if name not in hub.files:
            return self._fail("EntryNotFound")
        content = hub.files[name]
        return self._send(content, content[: len(content) // 2] if name in hub.cut_off else content)

    do_HEAD = do_GET

    def _send(self, content: bytes, sent: bytes | None = None) -> None:
        """Announce the content, and send it or what is sent of it."""
        self.send_response(200)
        self.send_header("ETag", f'"{_sha1(content)}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content if sent is None else sent)

    def _fail(self, code: str, status: int = 404) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Answer requests inside the block."""
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


def point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does when it is set before huggingface_hub is imported."""
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
