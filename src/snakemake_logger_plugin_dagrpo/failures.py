"""Failure records of stages, and the panel that shows them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from snakemake_logger_plugin_dagrpo.run import Job

FOLDER = Path(".state/failures")
LONGEST = 6000  # characters shown: ten mistakes have 5,000
SECONDS_OF_CLOCK_SKEW = 60.0  # between this machine and one of a cluster
CRASH, STOPPED = "crash", "stopped"  # kinds of failure that are shown differently
OUTSIDE_ITS_WORK = "stopped before its work began, or when it was done; the same command goes on from there."
WITHOUT_A_WORD = "it ended without a word: killed, perhaps because memory was short, or on a full disk."


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one job."""

    job: Job
    kind: str
    sentence: str
    log: str | None  # of the process that failed, where there are several


def path_of(job: Job) -> Path:
    """Return the path of a job's failure record."""
    return FOLDER / f"{job.stage}-{hashlib.sha256(str(job.log).encode()).hexdigest()[:16]}.json"


def failure_of(job: Job, *, stopping: bool) -> Failure:
    """Read a job's failure record, or describe the failure without one. `stopping`: a signal stopped the run."""
    try:
        record = json.loads(path_of(job).read_text())
        if record["time"] >= job.started - SECONDS_OF_CLOCK_SKEW:
            texts = (str(record[name])[:LONGEST] for name in ("kind", "sentence", "log"))
            shown = (
                "".join(c if c.isprintable() or c == "\n" else "?" for c in text) for text in texts
            )  # on a terminal
            kind, sentence, log = shown
            return Failure(job=job, kind=kind, sentence=sentence, log=log)
    except (OSError, ValueError, KeyError, TypeError):  # no record, or a damaged one
        pass
    if stopping:
        return Failure(job=job, kind=STOPPED, sentence=OUTSIDE_ITS_WORK, log=None)
    return Failure(job=job, kind=CRASH, sentence=WITHOUT_A_WORD, log=job.log)


def panel(failures: Sequence[Failure], command: str) -> RenderableType:
    """Render every failure with its message and log, and the command that resumes the run."""
    failed = any(failure.kind != STOPPED for failure in failures)
    to_mend = any(failure.kind not in {STOPPED, CRASH} for failure in failures)
    parts: list[RenderableType] = []
    for failure in failures:
        parts += [*_described(failure), ""]
    parts.append(Text("After fixing this, resume with:" if to_mend else "Resume with:"))
    parts.append(Padding(Text(command, style="bold", overflow="fold"), (0, 0, 0, 2)))
    colour = "red" if failed else "yellow"
    return Panel(Group(*parts), title=_title(failures), title_align="left", border_style=colour, box=box.HORIZONTALS)


def corrected(arguments: Sequence[str], failures: Sequence[Failure]) -> list[str]:
    """Return Snakemake's arguments with `...` for each value of --config whose parameter a message names as the mistake."""
    sentences = [failure.sentence for failure in failures if failure.kind not in {STOPPED, CRASH}]

    def is_wrong(name: str) -> bool:
        key = rf"(?<![\w.]){re.escape(name.replace('__', '.'))}(?![\w.]*\w)"
        return "__" in name and any(re.search(key, sentence) for sentence in sentences)

    return [f"{name}=..." if is_wrong(name) else given for given in arguments for name in [given.partition("=")[0]]]


def _title(failures: Sequence[Failure]) -> str:
    failed = sum(failure.kind != STOPPED for failure in failures)
    return {0: "Stopped", 1: "A stage failed"}.get(failed, f"{failed} stages failed")


def _described(failure: Failure) -> list[RenderableType]:
    if failure.kind == STOPPED:
        return [Text.assemble((failure.job.name, "bold"), f": {failure.sentence}", overflow="fold")]
    lines: list[RenderableType] = [Text(failure.job.name, style="bold"), _indented(failure.sentence)]
    if failure.log is not None:
        lines.append(_indented(f"Log: {failure.log}"))
    return lines


def _indented(text: str) -> RenderableType:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, 2))
