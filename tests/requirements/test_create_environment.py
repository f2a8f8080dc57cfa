"""The project's environment on a machine whose own Python is not fit, with a uv that is made up."""

import hashlib
import threading
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from requirements import create_environment

ENDING = "manylinux_2_17_x86_64.manylinux2014_x86_64"
NAME = f"uv-{create_environment.UV}-py3-none-{ENDING}.whl"


@pytest.fixture
def unfit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without venv, with a folder of wheels and an index that does not answer."""
    monkeypatch.setattr("dagrpo_doctor.gpu_requirements.makes_environments", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    return tmp_path


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, unfit: Path) -> Callable[[str], Path]:
    """Put a wheel of uv that is the given program into the folder of wheels, and take it for the one that is known."""

    def write(program: str) -> Path:
        with zipfile.ZipFile(unfit / NAME, "w") as archive:
            archive.writestr(f"uv-{create_environment.UV}.data/scripts/uv", program)
        digest = hashlib.sha256((unfit / NAME).read_bytes()).hexdigest()
        (unfit / "installer.lock").write_text(f"uv==0 --hash=sha256:{digest}")
        monkeypatch.setattr(create_environment, "LOCK", unfit / "installer.lock")
        return unfit / NAME

    return write


class _Index(BaseHTTPRequestHandler):
    """A package index of the pages of PEP 503 alone, which wants a password."""

    wheel = b""
    page = ""

    def do_GET(self) -> None:  # the name is http.server's
        is_known = self.headers.get("Authorization") == f"Basic {b64encode(b'user:secretpw').decode()}"
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if is_known:
            self.wfile.write(self.page.encode() if self.path == "/simple/uv/" else self.wheel)

    def log_message(self, format: str, *args: object) -> None:  # the name is http.server's
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The host of a package index that is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("http_proxy", raising=False)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_uv_of_a_folder_of_wheels_is_asked_for_a_python_with_headers(unfit: Path, put: Callable[[str], Path]) -> None:
    put(f'#!/bin/sh\necho "$@" > {unfit}/asked\n')
    create_environment.main(unfit / "environment")
    asked = (unfit / "asked").read_text().split()
    assert asked == ["venv", "--quiet", "--seed", "--python", "3.12", "--managed-python", str(unfit / "environment")]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("#!/bin/sh\nexit 2\n", r"uv got no Python 3\.12.*apt-get install -y python3-venv python3-dev"),
        ("\x7fELF of another processor", r"cannot be had or run \(OSError: \[Errno 8\] Exec format error"),
        (b"half a wheel", f"{NAME} of .* is damaged or forged"),
        (None, r"uv 0\.13\.8 cannot be had or run \(ConnectionRefusedError"),
    ],
)
def test_a_uv_that_gets_no_python_is_told_with_the_packages_to_install(
    program: str | bytes | None, words: str, unfit: Path, put: Callable[[str], Path]
) -> None:
    if isinstance(program, str):
        put(program)
    elif program is not None:
        (unfit / NAME).write_bytes(program)
    with pytest.raises(SystemExit, match=words):
        create_environment.main(unfit / "environment")


def test_an_index_of_html_pages_with_a_password_gives_the_wheel(
    unfit: Path, put: Callable[[str], Path], index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(f'#!/bin/sh\necho "$0" > {unfit}/asked\n')
    monkeypatch.setattr(_Index, "wheel", file.read_bytes())
    monkeypatch.setattr(_Index, "page", f'<a href="../../files/{NAME}#sha256=0">{NAME}</a>')
    file.unlink()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secretpw@{index}/simple")
    create_environment.main(unfit / "environment")
    program = Path((unfit / "asked").read_text().strip())
    assert program.parents[1] == unfit, "beside the environment: /tmp may be mounted with noexec"
    assert not program.exists()


@pytest.mark.parametrize(
    ("address", "page", "words"),
    [
        ("http://user:secretpw@{}/simple", "<a href='/uv-0.1.whl'>", "links to no uv-"),
        ("http://user:secretpw@{}/simple", f"<a href='/{NAME}'>", "is damaged or forged"),
        ("http://user:secretpw@127.0.0.1:1/simple", "", "cannot be had"),
        ("http://user:se/secretpw@host/simple", "", "cannot be had"),
        ("http://u:secretpw@[h/simple", "", "cannot be had"),
    ],
)
def test_an_index_without_the_wheel_that_is_known_is_told_without_its_password(
    address: str, page: str, words: str, unfit: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Index, "page", page)
    monkeypatch.setenv("PIP_INDEX_URL", address.replace("{}", index))
    with pytest.raises(SystemExit, match=words) as ended:
        create_environment.main(unfit / "environment")
    assert "secretpw" not in str(ended.value)


def test_a_password_goes_to_no_other_host_and_over_no_other_scheme() -> None:
    index = "https://user:secretpw@mirror.example/simple"
    assert (
        create_environment._with_user("https://mirror.example/uv.whl", index)
        == "https://user:secretpw@mirror.example/uv.whl"
    )
    for link in ("http://mirror.example/uv.whl", "https://files.example/uv.whl"):
        assert create_environment._with_user(link, index) == link
