"""Creation of the project's environment, with uv's Python if needed.

`python3 requirements/create_environment.py FOLDER` uses the Python that runs it if that has the right version, venv and headers.
Elsewhere, as on Ubuntu 22.04 (Python 3.10) and a bare Ubuntu 24.04 (neither venv nor headers), it unpacks uv's wheel, from a folder of
UV_FIND_LINKS or PIP_FIND_LINKS or else from the package index, and has uv get Python 3.12 with headers.
"""

import hashlib
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import urlopen
from zipfile import ZipFile

if not __package__:  # run as a file: no package is installed yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages/dagrpo_doctor/src"))

from dagrpo_doctor import gpu_requirements as gpu
from dagrpo_doctor.finding import apt

PYTHON = "3.12"
LOCK = Path(__file__).resolve().with_name("installer.lock")  # of uv
UV = LOCK.read_text().partition("==")[2].split()[0]
WHEELS = {  # by processor: the end of the name at PyPI
    "x86_64": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}
INDEX = "https://pypi.org/simple"
AS_HTML = "application/vnd.pypi.simple.v1+html, text/html;q=0.9"  # PEP 503: the form that every index has
SECONDS = 120.0


class WheelRefused(Exception):
    """An error message about a missing or unknown wheel of uv; it quotes no password."""


class _Links(HTMLParser):
    """The links on a page of a package index."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, "str | None"]]) -> None:
        self.links += [value for key, value in attrs if (tag, key) == ("a", "href") and value]


def main(folder: Path) -> None:
    """Make the environment. Raises SystemExit with a message if uv or Python is not available."""
    has_venv = gpu.fits() and gpu.makes_environments()
    if has_venv and gpu.headers(is_needed=False).is_there:
        raise SystemExit(_of_this_python(folder))
    trouble = _of_uv(folder)
    if trouble and has_venv:  # no headers: packages with wheels, and runs on the CPU, do without
        raise SystemExit(_of_this_python(folder))
    if trouble:
        raise SystemExit(_refusal(trouble))


def _of_this_python(folder: Path) -> int:
    return subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode


def _of_uv(folder: Path) -> str:
    """Make the environment with a Python that uv gets. Returns the error, if any."""
    command = ["venv", "--quiet", "--seed", "--python", PYTHON, "--managed-python", str(folder)]
    try:
        # Beside the environment: many machines run no program of /tmp.
        with tempfile.TemporaryDirectory(prefix=".uv-", dir=folder.absolute().parent) as place:
            uv = unpacked(wheel(), Path(place))
            return f"uv got no Python {PYTHON}" if subprocess.run([str(uv), *command], check=False).returncode else ""
    except WheelRefused as error:
        return f"uv {UV} cannot be had ({error})"
    except gpu.UNREACHABLE as error:
        return f"uv {UV} cannot be had or run ({gpu.reason(error)})"


def _refusal(trouble: str) -> str:
    remedy = apt("python3-venv", "python3-dev")
    return (
        f"{trouble}, and {sys.executable} is not fit: Python 3.11 to 3.13 with venv and Python.h is needed. Where that is the "
        f"system's version, install them: {remedy}. Behind a mirror set PIP_INDEX_URL and UV_PYTHON_INSTALL_MIRROR."
    )


def wheel() -> bytes:
    """Return uv's wheel for this machine.

    Raises WheelRefused if no wheel is known for the processor, the index has none, or it differs from the known one; OSError, ValueError or
    HTTPException if the index cannot be read.
    """
    machine = platform.machine()
    if machine not in WHEELS:
        raise WheelRefused(f"no wheel is known for {machine}")
    name = f"uv-{UV}-py3-none-{WHEELS[machine]}.whl"
    place = next((str(folder) for folder in _folders() if (folder / name).is_file()), None)
    content = _of_index(name) if place is None else Path(place, name).read_bytes()
    if f"sha256:{hashlib.sha256(content).hexdigest()}" not in LOCK.read_text():
        raise WheelRefused(f"{name} of {place or 'the index'} is damaged or forged: {LOCK.name} has no such hash")
    return content


def _of_index(name: str) -> bytes:
    """Return the file `name` of uv's page at PyPI, or at the index of PIP_INDEX_URL."""
    index = os.environ.get("PIP_INDEX_URL") or INDEX
    links = _Links()
    with urlopen(gpu.request(f"{index.rstrip('/')}/uv/", accept=AS_HTML), timeout=SECONDS) as answer:
        links.feed(answer.read().decode(errors="replace"))
        addresses = [
            urljoin(answer.url, link) for link in links.links if unquote(urlsplit(link).path).rpartition("/")[2] == name
        ]
    if not addresses:
        raise WheelRefused(f"the page uv of the package index links to no {name}")
    with urlopen(gpu.request(_with_user(addresses[0], index)), timeout=SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _with_user(link: str, index: str) -> str:
    """Return the link with user and password of the index, if it leads to the same host."""
    there, here = urlsplit(link), urlsplit(index)
    is_same = (there.scheme, there.netloc) == (here.scheme, here.netloc.rpartition("@")[2])
    return urlunsplit(there._replace(netloc=here.netloc)) if is_same else link


def _folders() -> Iterator[Path]:
    for variable in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        for link in os.environ.get(variable, "").replace(",", " ").split():
            yield Path(link.removeprefix("file://"))


def unpacked(content: bytes, folder: Path) -> Path:
    """Write the program uv of a wheel into `folder` and return its path."""
    uv = folder / "uv"
    with ZipFile(BytesIO(content)) as archive:
        uv.write_bytes(archive.read(f"uv-{UV}.data/scripts/uv"))
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    return uv


if __name__ == "__main__":
    main(Path(sys.argv[1]))
