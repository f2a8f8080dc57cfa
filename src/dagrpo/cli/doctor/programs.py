"""Checks of Python, its headers, compilers and programs for an installation."""

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dagrpo.cli.doctor.finding import Finding, apt, check

OLDEST, NEWEST = (3, 11), (3, 13)  # Python


def fits() -> bool:
    """Return True if this Python has a version that fits."""
    return OLDEST <= sys.version_info[:2] <= NEWEST


def python() -> Finding:
    """Check the version of the Python that runs this; `make gpu` gets another if it does not fit."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = "`make gpu` gets Python 3.12 by uv, from GitHub; elsewhere set UV_PYTHON_INSTALL_MIRROR"
    return check("Python", fits(), version, f"{version}, and Python 3.11, 3.12 or 3.13 is needed", remedy, needed=False)


def environment_module() -> Finding:
    """Check that the Python that runs this can make environments."""
    fault = "this Python has no ensurepip, so it makes no environment"
    remedy = f"`make gpu` gets Python 3.12 by uv, from GitHub; or {apt('python3-venv', 'python3-dev')}"
    return check("venv", makes_environments(), "python3 -m venv works", fault, remedy, needed=False)


def makes_environments() -> bool:
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def is_environment() -> bool:
    """Return True if the Python that runs this belongs to an existing environment."""
    return sys.prefix != sys.base_prefix


def headers(*, is_needed: bool) -> Finding:
    """Check that Python.h exists, which Triton includes for each kernel; in an environment, that of its base Python."""
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    place = Path(sysconfig.get_path("include", vars=base)) / "Python.h"
    fault = f"{place} is not there: Triton compiles no kernel without it"
    remedy = f"{apt('python3-dev')}; or `make gpu`, which gets a Python with headers by uv"
    return check("Python.h", place.is_file(), str(place), fault, remedy, needed=is_needed)


def has_venv() -> bool:
    """Return True if this Python makes environments of a version that fits."""
    return fits() and makes_environments()


def suits() -> bool:
    """Return True if this Python can make the project's environment for a GPU: version, venv and headers."""
    return has_venv() and headers(is_needed=False).is_there


def compilers() -> Iterator[Finding]:
    """Yield the compilers: of C for Triton and packages without wheels, of C++ for kernels that SGLang compiles."""
    for language, programs in (("C", ("cc", "gcc", "clang")), ("C++", ("c++", "g++", "clang++"))):
        place = next(filter(None, map(shutil.which, programs)), None)
        fault = f"none of {', '.join(programs)} is on PATH"
        yield check(f"{language} compiler", place is not None, str(place), fault, apt("g++"))


def program(name: str, remedy: str = "") -> Finding:
    """Check that a program is on PATH. remedy: by default the package of that name."""
    place = shutil.which(name)
    return check(name, place is not None, str(place), "not on PATH", remedy or apt(name))
