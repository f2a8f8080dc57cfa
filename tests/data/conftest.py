"""A stand-in for the Hugging Face hub on 127.0.0.1."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest


class Hub(ThreadingHTTPServer):
    """The parts of the hub's API that reading a data set at a commit uses. Any other commit does not exist."""

    def __init__(self, repository: str, commit: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.commit = commit
        self.files = files
        self.asked: list[str] = []  # every path that was asked for
        self.refused: list[str] = []  # files that are not handed out

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def entries(self, folder: str = "") -> list[dict[str, object]]:
        """The files and folders under a folder, as the hub lists them."""
        names = [name for name in self.files if name.startswith(folder)]
        folders = {str(parent) for name in names for parent in Path(name).parents if str(parent) not in (".", folder)}
        listed: list[dict[str, object]] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in sorted(folders)
        ]
        return listed + [{"type": "file", "oid": "0" * 40, "size": len(self.files[n]), "path": n} for n in names]


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["paths"]
        self.server.asked.append(self.path)
        if f"/paths-info/{self.server.commit}" not in self.path:
            return self._fail("RevisionNotFound")
        return self._send(json.dumps([e for e in self.server.entries() if e["path"] in wanted]).encode(), body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, unquote(urlparse(self.path).path)
        hub.asked.append(path)
        api, raw = f"/api/datasets/{hub.repository}", f"/datasets/{hub.repository}/resolve/"
        if path in (f"{api}/revision/{hub.commit}", api):
            siblings = [{"rfilename": name} for name in hub.files]
            return self._send(
                json.dumps({"id": hub.repository, "sha": hub.commit, "siblings": siblings}).encode(), body=body
            )
        if path.startswith(f"{api}/tree/{hub.commit}"):
            folder = path.removeprefix(f"{api}/tree/{hub.commit}").strip("/")
            return self._send(json.dumps(hub.entries(folder)).encode(), body=body)
        if path.startswith(raw):
            commit, _, name = path.removeprefix(raw).partition("/")
            if commit != hub.commit:
                return self._fail("RevisionNotFound")
            if name in hub.refused:
                return self._fail("GatedRepo", 403)
            return self._send(hub.files[name], body=body) if name in hub.files else self._fail("EntryNotFound")
        return self._fail("RevisionNotFound" if hub.repository in path else "RepoNotFound")

    def _send(self, content: bytes, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _fail(self, code: str, status: int = 404) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


ServeHub = Callable[[str, str, Mapping[str, bytes]], Hub]


@pytest.fixture
def serve_hub() -> Iterator[ServeHub]:
    """Start a stand-in that holds one data set."""
    hubs: list[Hub] = []

    def serve(repository: str, commit: str, files: Mapping[str, bytes]) -> Hub:
        hubs.append(Hub(repository, commit, files))
        threading.Thread(target=hubs[-1].serve_forever, daemon=True).start()
        return hubs[-1]

    yield serve
    for hub in hubs:
        hub.shutdown()
        hub.server_close()
