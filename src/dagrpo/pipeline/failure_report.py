"""Failure records of stages, written to disk and printed without Snakemake.

The record is one small JSON file per job, named by the job's log, in `.state/failures`. It is removed when the job starts
again. Snakemake's screen (the package snakemake_logger_plugin_dagrpo, which does not import this one) reads it, also when
the stage ran on another machine.
"""

import hashlib
import os
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.pipeline.declaration import Stage
from dagrpo.utils import console
from dagrpo.utils.files import read_json, write_json

FOLDER = Path(".state/failures")
SCREEN = "DAGRPO_SCREEN"  # set by Snakemake's screen, which shows failures itself


class Kind(StrEnum):
    """The cause of a failure: the user's mistake, a bug, something broken outside the stage, or a signal to stop."""

    MISTAKE = "mistake"
    BUG = "bug"
    CRASH = "crash"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of one execution of a stage. Example of `what`: "train, seed 0"."""

    stage: str
    what: str
    kind: str  # a Kind
    sentence: str
    log: str
    attempt: int  # from 1
    step: int | None  # how many steps were finished, of a stage that has some
    time: float  # seconds since 1970


class FailureReport:
    """The writer of one job's failure record."""

    def __init__(self, stage: Stage, seed: int | None, log: Path, attempt: int = 1, rank: int = 0) -> None:
        """Set up the record; `log` names the job, in each of its processes."""
        self._stage = stage
        self._what = stage.name if seed is None else f"{stage.name}, seed {seed}"
        self._path = path_of(stage.name, log)
        self._log = log if rank == 0 else log.with_suffix(f".rank_{rank}.log")
        self._attempt = attempt
        self._rank = rank
        self._prints = rank == 0 and not is_shown_by_snakemake()
        self.state: Path | None = None  # of the job, once it works

    def remove(self) -> None:
        """Remove the record: the job starts, or has ended well."""
        self._path.unlink(missing_ok=True)

    def earlier(self) -> Failure | None:
        """Return the record written by an earlier attempt or by another process of this attempt, if any."""
        try:
            return Failure(**read_json(self._path))
        except (UserError, TypeError, OSError):  # missing or damaged: about to be written again
            return None

    def record(self, kind: Kind, sentence: str) -> None:
        """Record why the job failed; print it unless Snakemake will."""
        self._note(kind, sentence)
        if self._prints:
            print(f"{self._stage.name}: {sentence}\nLog: {self._log}", file=sys.stderr, flush=True)

    def record_bug(self, words: str, place: str) -> None:
        """Record a bug and its place in the code. Python prints its traceback, unless an earlier attempt recorded the same."""
        sentence = f"a bug in {place}: {words.splitlines()[0]}. The log has its traceback."
        earlier = self.earlier()
        self._note(Kind.BUG, sentence)
        if earlier is not None and earlier.sentence == sentence:
            sys.excepthook = lambda kind, error, traceback: None

    def record_stop(self) -> None:
        """Record that a signal stopped the job, unless it failed before: processes beside a failed one are stopped.

        Rank 0 does it, which knows the step.
        """
        if self._rank > 0 or self._of_this_attempt() is not None:
            return
        states = [] if self.state is None else self.state.glob("step_*/state.json")
        saved = [step for path in states if (step := path.parent.name.removeprefix("step_")).isdecimal()]
        sentence = stop_sentence(_finished_steps(self._stage), max(map(int, saved), default=0))
        self._note(Kind.STOPPED, sentence)
        if self._prints:
            print(f"{self._what}: {sentence}", file=sys.stderr, flush=True)

    def record_crash(self, sentence: str) -> Failure:
        """Return the record of a crashed attempt; if it wrote none, one with the given message."""
        earlier = self._of_this_attempt()
        if earlier is not None and earlier.kind != Kind.STOPPED:  # stopped: by another of its processes, which crashed
            return earlier
        return self._note(Kind.CRASH, sentence)

    def _of_this_attempt(self) -> Failure | None:
        earlier = self.earlier()
        return earlier if earlier is not None and earlier.attempt == self._attempt else None

    def _note(self, kind: Kind, sentence: str) -> Failure:
        """Record the first failure among several processes. A user's mistake replaces it: its effects on others may come first."""
        earlier, final = self._of_this_attempt(), {Kind.MISTAKE} if kind == Kind.MISTAKE else {*Kind} - {Kind.STOPPED}
        if earlier is not None and earlier.kind in final:
            return earlier
        failure = Failure(
            stage=self._stage.name,
            what=self._what,
            kind=kind,
            sentence=sentence,
            log=str(self._log),
            attempt=self._attempt,
            step=_finished_steps(self._stage),
            time=time.time(),
        )
        try:
            write_json(self._path, asdict(failure))
        except OSError as error:  # a full disk is often the failure itself
            print(f"{self._what}: {sentence} ({self._path} cannot be written: {error})", file=sys.stderr, flush=True)
        return failure


def path_of(stage: str, log: Path) -> Path:
    """Return the record's path for the job with this log."""
    return FOLDER / f"{stage}-{hashlib.sha256(str(log).encode()).hexdigest()[:16]}.json"


def is_shown_by_snakemake() -> bool:
    """Return True if a Snakemake above this process shows why the stage failed."""
    return SCREEN in os.environ


def stop_sentence(finished: int | None, saved: int) -> str:
    """Return the message about a stage stopped by a signal: its last step, and the step at which it resumes."""
    if not saved:
        after = f" at step {finished}" if finished else ""
        return f"stopped{after}; the same command starts it again."
    if finished is None or finished <= saved:
        return f"stopped at step {saved}; the same command goes on from there."
    return f"stopped at step {finished}; the same command goes on from step {saved}, the last that was saved."


def _finished_steps(stage: Stage) -> int | None:
    """Return the progress of a stage with steps, as its bar shows it."""
    return console.finished() if stage.extends else None
