"""Snakemake's log records as lines, with one panel after failures.

With --verbose, --printshellcmds or --debug-dag Snakemake's own messages are shown, and the panel below them. All of its messages
are in .snakemake/log in any case.
"""

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from logging import Handler, LogRecord
from pathlib import Path
from types import TracebackType

from rich.console import Console
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_dagrpo.failures import Job, failure_of, panel

SCREEN = "DAGRPO_SCREEN"  # tells the stages that their failures are shown here
MAX_WIDTH = 110
TARGETS = frozenset({"target", "prepared", "total"})  # in Snakemake's counts, and no stages
FAILED = "At least one job did not complete successfully."
STOPPING = "Terminating processes on user request"
REFUSALS = ("Refusal", "UserError")  # exceptions whose message is for the user
NOISE = (  # on which the user cannot act
    "Assuming unrestricted shared filesystem usage",
    "Building DAG of jobs",
    "Cannot restore ",
    "Cleaning up SLURM log files",
    "Complete log(s):",
    "Config file params.yaml is extended",
    "Conda environments: ignored",
    "Elapsed time:",
    "Exiting because a job execution failed",
    "Group jobs: inactive",
    "No SLURM account given, trying to guess",
    "No account was given, not able to get a SLURM account",
    "Removing output files of failed job",
    "Select jobs to execute",
    "Shutting down, this might take some time",
    "Singularity containers: ignored",
    "Trying to restart job",
    "Some jobs were triggered by provenance information",
    "Rules with provenance triggered jobs",
    "Unable to guess SLURM account",
    "Using shell:",
    "Will exit after finishing currently running jobs",
)
_PLACE = re.compile(r'^ *File ".*", line \d+.*$')
_IN_INPUT_FUNCTION = re.compile(r"^ *(?:Refusal|UserError):\s+(.+?)\nWildcards:", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+=")


class LogHandler(LogHandlerBase):
    """The handler of Snakemake's option `--logger dagrpo`. One per run."""

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        settings = self.common_settings
        self._running: dict[int, Job] = {}
        self._failed: list[Job] = []
        self._total: int | None = None  # stages
        self._done = 0
        self._stopping = False
        self._console = Console(
            file=sys.stdout if settings.stdout else sys.stderr, no_color=settings.nocolor or None, highlight=False
        )
        if not self._console.is_terminal:
            self._console.width = MAX_WIDTH
        self._quiet = {str(choice) for choice in settings.quiet or ()}
        wordy = settings.verbose or settings.printshellcmds or settings.debug_dag
        self._own_words = _own_words(self) if wordy else None
        self._show = {
            LogEvent.RUN_INFO: self._plan,
            LogEvent.JOB_INFO: self._start,
            LogEvent.JOB_FINISHED: self._finish,
            LogEvent.JOB_ERROR: self._fail,
            LogEvent.GROUP_ERROR: self._fail_group,
            LogEvent.ERROR: self._error,
            None: self._message,
        }
        if not settings.dryrun:
            os.environ[SCREEN] = "snakemake"
        sys.excepthook = _interrupted
        logging.raiseExceptions = False  # on a full disk each line of Snakemake's log would print a traceback

    def emit(self, record: LogRecord) -> None:
        """Show a record, or take note of it."""
        try:
            if self._own_words is not None:
                self._own_words.handle(record)
            show = self._show.get(getattr(record, "event", None))
            if show is not None:
                show(record)
        except Exception:  # noqa: BLE001  # as in every logging handler: what cannot be shown must not end the run
            self.handleError(record)

    def _say(self, text: str, *, about: str = "", style: str = "") -> None:
        """Print a line, unless --quiet suppresses it or Snakemake's own messages contain it."""
        if text and self._own_words is None and not {"all", about} & self._quiet:
            self._console.print(text, style=style, markup=False, soft_wrap=True)

    def _plan(self, record: LogRecord) -> None:
        if self._total is not None:  # a dry run counts its jobs twice
            return
        stages = {name: count for name, count in record.__dict__["stats"].items() if name not in TARGETS}
        self._total = sum(stages.values())
        if self.common_settings.dryrun:
            self._say(record.getMessage())
        elif self._total > 1 and not _under_dvc():
            named = ", ".join(name if count == 1 else f"{count} {name}" for name, count in stages.items())
            self._say(f"{self._total} stages to run: {named}", about="progress")

    def _start(self, record: LogRecord) -> None:
        fields = record.__dict__
        title = fields.get("rule_msg") or " ".join([fields["rule_name"], *map(str, fields["wildcards"].values())])
        log = fields["log"][0] if fields.get("log") else None
        others = [job for job in self._failed if job.log != log]
        again = ", again" if len(others) < len(self._failed) else ""  # by --retries
        self._failed = others
        self._running[fields["jobid"]] = Job(stage=fields["rule_name"], title=title, log=log, started=record.created)
        if not self.common_settings.dryrun:
            self._say(f"{title}{again}", about="rules", style="bold")

    def _finish(self, record: LogRecord) -> None:
        job = self._running.pop(record.__dict__["job_id"], None)
        if job is not None and job.log is not None:
            self._done += 1
            counted = f", {self._done} of {self._total} stages" if (self._total or 0) > 1 else ""
            took = duration(record.created - job.started)
            self._say(f"{job.title}: done in {took}{counted}", about="progress", style="green")

    def _fail(self, record: LogRecord) -> None:
        job = self._running.pop(record.__dict__["jobid"], None)
        if job is None:
            return
        self._failed.append(job)
        if others := "; ".join(other.title for other in self._running.values()):
            took = duration(record.created - job.started)
            self._say(f"{job.title}: failed after {took}. Still running: {others}", style="red")

    def _fail_group(self, record: LogRecord) -> None:
        numbers = [job["jobid"] for job in record.__dict__["job_error_info"]]
        self._failed += [self._running.pop(number) for number in numbers if number in self._running]

    def _message(self, record: LogRecord) -> None:
        text = record.getMessage() if record.msg else ""
        if text.startswith(STOPPING):
            self._stopping = True
            self._say("Stopping: what is finished is kept.", style="yellow")
        elif not text.startswith(NOISE):
            if text.startswith("Error: Directory cannot be locked"):  # of a dry run, which continues
                text = "A run is at work here: what is planned now may be done meanwhile."
            text = text.replace("\n    (check individual jobs above for details)", "").rstrip()
            self._say(text, style="yellow" if record.levelname == "WARNING" else "")

    def _error(self, record: LogRecord) -> None:
        text, exception = record.getMessage(), str(getattr(record, "exception", ""))
        is_at_the_end = text.endswith(FAILED)
        # One that only repeats the command line of a failed job is left out: the panel shows why it failed.
        if not is_at_the_end and "CalledProcessError" not in text.partition("\nCommand ")[0]:
            text = error_text(exception, text, sys.argv[1:])
            self._console.print(text, style="red", markup=False, soft_wrap=True)
        if is_at_the_end:
            jobs = [job for job in [*self._failed, *self._running.values()] if job.log is not None]
            failures = [failure_of(job, stopping=self._stopping) for job in jobs]
            own = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            shown = panel(failures, _dvcs_command() if _under_dvc() else own)
            self._console.print(shown, width=min(self._console.width, MAX_WIDTH))


def error_text(exception: str, text: str, arguments: Sequence[str]) -> str:
    """Return Snakemake's error as shown: a refusal as its message only. `arguments` are Snakemake's own."""
    if exception in REFUSALS:  # without the lines of files that Snakemake puts around it
        head, _, rest = text.partition("\n")
        body = rest if head.endswith(":") and head.startswith(REFUSALS) else text
        return "\n".join(line for line in body.splitlines() if not _PLACE.match(line)).strip()
    if exception == "InputFunctionException" and (found := _IN_INPUT_FUNCTION.search(text)):
        return "\n".join(line.strip() for line in found.group(1).splitlines())
    if "Invalid config definition" not in text:
        return text.rstrip()
    dotted = next((argument for argument in arguments if _DOTTED.match(argument)), None)
    if dotted is None:
        return text.strip().splitlines()[-1].removeprefix("ValueError: ")
    name, _, value = dotted.partition("=")
    works = shlex.quote(f"{name.replace('.', '__')}={value}")
    return f"--config {dotted}: Snakemake takes no dots in a name; write --config {works}."


def duration(seconds: float) -> str:
    """Format a duration: `7 s`, `2 min 5 s`, `3 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _own_words(handler: LogHandlerBase) -> Handler:
    """Return Snakemake's own handler of records."""
    from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

    settings = handler.common_settings
    return ColorizingTextHandler(  # type: ignore[no-any-return]
        nocolor=settings.nocolor,
        stream=sys.stdout if settings.stdout else sys.stderr,
        formatter=DefaultFormatter(settings.quiet, settings.show_failed_logs),
        filter=DefaultFilter(
            settings.quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds
        ),
    )


def _under_dvc() -> bool:
    return "DVC_STAGE" in os.environ


def _dvcs_command() -> str:
    """Return the command that resumes: in the copy of `dvc exp run --temp` the one that made the copy."""
    is_copy, note = Path(os.environ.get("DVC_ROOT", "")).resolve() != Path.cwd(), Path(".state/dvc.json")
    return str(json.loads(note.read_text())["command"]) if is_copy and note.exists() else "dvc repro"


def _interrupted(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print one line for Ctrl-C before the first job, or for a second time; show anything else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, traceback)
