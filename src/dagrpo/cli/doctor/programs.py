"""Checks of Python, its headers, compilers and programs for an installation."""

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dagrpo.cli.doctor.finding import Finding, apt

OLDEST, NEWEST = (3, 11), (3, 13)  # Python


def python() -> Finding:
    """Check the version of the Python that runs this; `make gpu` gets another if it does not fit."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    fits = OLDEST <= sys.version_info[:2] <= NEWEST
    return Finding(
        name="Python",
        detail=f"{version}" if fits else f"{version}, and Python 3.11, 3.12 or 3.13 is needed",
        is_there=fits,
        is_needed=False,
        remedy="`make gpu` gets Python 3.12 by uv, from GitHub; elsewhere set UV_PYTHON_INSTALL_MIRROR",
    )


def environment_module() -> Finding:
    """Check that the Python that runs this can make environments."""
    return Finding(
        name="venv",
        detail="python3 -m venv works"
        if makes_environments()
        else "this Python has no ensurepip, so it makes no environment",
        is_there=makes_environments(),
        is_needed=False,
        remedy=f"`make gpu` gets Python 3.12 by uv, from GitHub; or {apt('python3-venv', 'python3-dev')}",
    )


def is_environment() -> bool:
    """Return True if the Python that runs this belongs to an existing environment."""
    return sys.prefix != sys.base_prefix


def headers(*, is_needed: bool) -> Finding:
    """Check that Python.h exists, which Triton includes for each kernel; in an environment, that of its base Python."""
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    place = Path(sysconfig.get_path("include", vars=base)) / "Python.h"
    return Finding(
        name="Python.h",
        detail=str(place) if place.is_file() else f"{place} is not there: Triton compiles no kernel without it",
        is_there=place.is_file(),
        is_needed=is_needed,
        remedy=f"{apt('python3-dev')}; or `make gpu`, which gets a Python with headers by uv",
    )


def has_venv() -> bool:
    """Return True if this Python makes environments of a version that fits."""
    return python().is_there and makes_environments()


def suits() -> bool:
    """Return True if this Python can make the project's environment for a GPU: version, venv and headers."""
    return has_venv() and headers(is_needed=False).is_there


def makes_environments() -> bool:
    return find_spec("venv") is not None and find_spec("ensurepip") is not None


def compilers() -> Iterator[Finding]:
    """Yield the compilers: of C for Triton and packages without wheels, of C++ for kernels that SGLang compiles."""
    for language, programs in (("C", ("cc", "gcc", "clang")), ("C++", ("c++", "g++", "clang++"))):
        place = next(filter(None, map(shutil.which, programs)), None)
        yield Finding(
            name=f"{language} compiler",
            detail=place or f"none of {', '.join(programs)} is on PATH",
            is_there=place is not None,
            remedy=apt("g++"),
        )


def program(name: str) -> Finding:
    place = shutil.which(name)
    return Finding(name=name, detail=place or "not on PATH", is_there=place is not None, remedy=apt(name))
