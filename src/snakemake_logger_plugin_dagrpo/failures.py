"""Failure records of stages, and the panel that shows them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

FOLDER = Path(".state/failures")
LONGEST = 6000  # characters shown: ten mistakes have 5,000
SECONDS_OF_CLOCK_SKEW = 60.0  # between this machine and one of a cluster
CRASH, STOPPED = "crash", "stopped"  # kinds of failure that are shown differently
OUTSIDE_ITS_WORK = "stopped before its work began, or when it was done; the same command goes on from there."
WITHOUT_A_WORD = "it ended without a word: killed, perhaps because memory was short, or on a full disk."


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of a rule."""

    stage: str  # the rule
    title: str  # as the rule's message has it: `train: seed 0`
    log: str | None  # None: a target, which does nothing
    started: float  # seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one job."""

    job: Job
    kind: str
    sentence: str
    log: str | None  # of the process that failed, where there are several


def failure_of(job: Job, *, stopping: bool) -> Failure:
    """Read a job's failure record, or describe the failure without one. `stopping`: a signal stopped the run."""
    path = FOLDER / f"{job.stage}-{hashlib.sha256(str(job.log).encode()).hexdigest()[:16]}.json"
    try:
        record = json.loads(path.read_text())
        if record["time"] >= job.started - SECONDS_OF_CLOCK_SKEW:
            kind, sentence, log = (_printable(str(record[name])) for name in ("kind", "sentence", "log"))
            return Failure(job=job, kind=kind, sentence=sentence, log=log)
    except (OSError, ValueError, KeyError, TypeError):  # no record, or a damaged one
        pass
    if stopping:
        return Failure(job=job, kind=STOPPED, sentence=OUTSIDE_ITS_WORK, log=None)
    return Failure(job=job, kind=CRASH, sentence=WITHOUT_A_WORD, log=job.log)


def _printable(text: str) -> str:
    """Make untrusted text safe for a terminal: a few sentences at most, without control characters."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text[:LONGEST])


def panel(failures: Sequence[Failure], command: str) -> RenderableType:
    """Render every failure with its message and log, and the command that resumes the run."""
    parts: list[RenderableType] = []
    for failure in failures:
        name = failure.job.title.replace(": ", ", ", 1)
        if failure.kind == STOPPED:
            parts.append(Text.assemble((name, "bold"), f": {failure.sentence}", overflow="fold"))
        else:
            log = [] if failure.log is None else [_indented(f"Log: {failure.log}")]
            parts += [Text(name, style="bold"), _indented(failure.sentence), *log]
        parts.append("")
    failed = sum(failure.kind != STOPPED for failure in failures)
    title = ("Stopped", "A stage failed")[failed] if failed < 2 else f"{failed} stages failed"
    parts.append(Text("After fixing this, resume with:" if _mistakes(failures) else "Resume with:"))
    parts.append(_indented(command, style="bold"))
    colour = "red" if failed else "yellow"
    return Panel(Group(*parts), title=title, title_align="left", border_style=colour, box=box.HORIZONTALS)


def _mistakes(failures: Sequence[Failure]) -> list[Failure]:
    return [failure for failure in failures if failure.kind not in {STOPPED, CRASH}]


def _indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2))
