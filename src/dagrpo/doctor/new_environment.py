"""Make the project's environment, of a Python that uv gets where needed.

`python3 src/dagrpo/doctor/new_environment.py FOLDER` takes the Python that runs it where that has the right version, venv and headers.
Elsewhere, as on Ubuntu 22.04 (Python 3.10) and a bare Ubuntu 24.04 (neither venv nor headers), it unpacks uv's wheel, from a folder of
UV_FIND_LINKS or PIP_FIND_LINKS or else from the package index, and has uv get Python 3.12 with headers.
"""

import hashlib
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import Request, urlopen
from zipfile import ZipFile

sys.path.insert(0, str(Path(__file__).parent))
import needs  # type: ignore[import-not-found,unused-ignore]  # beside this file: no package is installed yet

PYTHON = "3.12"
UV = "0.13.8"
INDEX = "https://pypi.org/simple"
AS_JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}  # PEP 691
SECONDS = 120.0


def main(folder: Path) -> None:
    """Make the environment. SystemExit with a sentence: uv or Python cannot be had."""
    if needs.suits():
        raise SystemExit(_of_this_python(folder))
    trouble = _of_uv(folder)
    if trouble and needs.has_venv():  # no headers: packages with wheels, and runs on the CPU, do without
        raise SystemExit(_of_this_python(folder))
    if trouble:
        raise SystemExit(_refusal(trouble))


def _of_this_python(folder: Path) -> int:
    return subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode


def _of_uv(folder: Path) -> str:
    """Make the environment of a Python that uv gets. Returns what went wrong, if anything did."""
    with tempfile.TemporaryDirectory() as place:
        try:
            uv = unpacked(wheel(), Path(place))
        except (OSError, ValueError, KeyError, StopIteration) as error:
            return f"uv {UV} cannot be had ({type(error).__name__}: {error})"
        command = [str(uv), "venv", "--quiet", "--seed", "--python", PYTHON, "--managed-python", str(folder)]
        return f"uv got no Python {PYTHON}" if subprocess.run(command, check=False).returncode else ""


def _refusal(trouble: str) -> str:
    remedy = needs.apt("python3-venv", "python3-dev")
    return (
        f"{trouble}, and {sys.executable} is not fit: Python 3.11 to 3.13 with venv and Python.h is needed. Where that is the "
        f"system's version, install them: {remedy}. Behind a mirror set PIP_INDEX_URL and UV_PYTHON_INSTALL_MIRROR."
    )


def wheel() -> bytes:
    """Return uv's wheel for this machine. OSError, ValueError, StopIteration: there is none, or it is damaged."""
    ending = f"manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}.whl"
    name = f"uv-{UV}-py3-none-{ending}"
    for folder in _folders():
        if (folder / name).is_file():
            return (folder / name).read_bytes()
    page = f"{(os.environ.get('PIP_INDEX_URL') or INDEX).rstrip('/')}/uv/"
    with urlopen(Request(page, headers=AS_JSON), timeout=SECONDS) as answer:
        file = next(each for each in json.load(answer)["files"] if each["filename"] == name)
    with urlopen(urljoin(page, file["url"]), timeout=SECONDS) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != file["hashes"]["sha256"]:
        raise ValueError(f"{name} has another sha256 than the index says")
    return content


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
