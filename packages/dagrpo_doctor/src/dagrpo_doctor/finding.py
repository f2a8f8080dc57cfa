"""A line of `dagrpo doctor`, and shared helpers."""

import os
from dataclasses import dataclass

GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. Never holds a secret: of a credential only its presence."""

    name: str  # "GPU"
    detail: str  # as text; for a missing item, the fault
    is_there: bool = True
    is_needed: bool = True  # without it, runs fail; else they do without
    remedy: str = ""  # a command, or what to do, where it is missing

    @property
    def is_trouble(self) -> bool:
        return self.is_needed and not self.is_there

    @property
    def state(self) -> str:
        """The state: "ok", "missing" if a run needs the item, "none" if a run works without it."""
        return "ok" if self.is_there else "missing" if self.is_needed else "none"


def check(name: str, works: bool, detail: str, fault: str, remedy: str = "", *, needed: bool = True) -> Finding:
    """Return a line with `detail` where it works, else with `fault` and the remedy."""
    return Finding(name=name, detail=detail if works else fault, is_there=works, is_needed=needed, remedy=remedy)


def apt(*packages: str) -> str:
    """Return the command that installs packages of Ubuntu and Debian, for this user."""
    return f"{sudo()}apt-get update && {sudo()}apt-get install -y {' '.join(packages)}"


def sudo() -> str:
    return "" if os.geteuid() == 0 else "sudo "


def version_of(text: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None if it has none."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0] or "0"
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def gib(count: float) -> str:
    return f"{count / GIBIBYTE:.2f} GiB"
