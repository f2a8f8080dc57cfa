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
    monkeypatch.setattr("dagrpo.cli.doctor.gpu_requirements.makes_environments", lambda: False)
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


def test_a_python_that_uv_cannot_get_is_told_with_the_packages_to_install(
    unfit: Path, put: Callable[[str], Path]
) -> None:
    put("#!/bin/sh\nexit 2\n")
    with pytest.raises(SystemExit, match=r"uv got no Python 3\.12.*apt-get install -y python3-venv python3-dev"):
        create_environment.main(unfit / "environment")


def test_an_index_that_does_not_answer_is_told(unfit: Path) -> None:
    with pytest.raises(SystemExit, match=r"uv 0\.13\.8 cannot be had or run \(ConnectionRefusedError"):
        create_environment.main(unfit / "environment")


def test_a_python_without_headers_alone_is_taken_where_uv_gets_none(
    unfit: Path, put: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagrpo.cli.doctor.gpu_requirements.makes_environments", lambda: True)
    monkeypatch.setattr("sysconfig.get_path", lambda name, **more: str(unfit))
    monkeypatch.setattr(create_environment, "_of_this_python", lambda folder: 0)
    put("#!/bin/sh\nexit 2\n")
    with pytest.raises(SystemExit) as ended:
        create_environment.main(unfit / "environment")
    assert ended.value.code == 0


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
    ("page", "words"),
    [("<a href='/uv-0.1.whl'>", "links to no uv-"), (f"<a href='/{NAME}'>", "is damaged or forged")],
)
def test_an_index_without_the_wheel_that_is_known_is_told(
    page: str, words: str, unfit: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Index, "page", page)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secretpw@{index}/simple")
    with pytest.raises(SystemExit, match=words) as ended:
        create_environment.main(unfit / "environment")
    assert "secretpw" not in str(ended.value)


@pytest.mark.parametrize(
    "address",
    ["http://user:secretpw@127.0.0.1:1/simple", "http://user:se/secretpw@host/simple", "http://u:secretpw@[h/simple"],
)
def test_a_password_of_an_index_is_not_printed(address: str, unfit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(SystemExit) as ended:
        create_environment.main(unfit / "environment")
    assert "cannot be had" in str(ended.value)
    assert "secretpw" not in str(ended.value)


def test_a_password_goes_to_no_other_host_and_over_no_other_scheme() -> None:
    index = "https://user:secretpw@mirror.example/simple"
    assert (
        create_environment._with_user("https://mirror.example/uv.whl", index)
        == "https://user:secretpw@mirror.example/uv.whl"
    )
    for link in ("http://mirror.example/uv.whl", "https://files.example/uv.whl"):
        assert create_environment._with_user(link, index) == link


def test_a_damaged_wheel_of_a_folder_is_refused_with_its_place(unfit: Path) -> None:
    (unfit / NAME).write_bytes(b"half a wheel")
    with pytest.raises(SystemExit, match=f"{NAME} of {unfit} is damaged or forged"):
        create_environment.main(unfit / "environment")


def test_a_program_that_cannot_be_run_is_told(unfit: Path, put: Callable[[str], Path]) -> None:
    put("\x7fELF of another processor")
    with pytest.raises(SystemExit, match=r"cannot be had or run \(OSError: \[Errno 8\] Exec format error"):
        create_environment.main(unfit / "environment")
