"""Snakemake's log records as lines, with one panel after failures.

With --verbose, --printshellcmds or --debug-dag Snakemake's own messages are shown, and the panel below them. All of its messages
are in .snakemake/log in any case.
"""

import errno
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from logging import Handler, LogRecord
from pathlib import Path
from types import TracebackType

from rich.console import Console
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_dagrpo import wording
from snakemake_logger_plugin_dagrpo.failures import corrected, failure_of, panel
from snakemake_logger_plugin_dagrpo.run import Run

SCREEN = "DAGRPO_SCREEN"  # tells the stages that their failures are shown here
MAX_WIDTH = 110
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogHandler(LogHandlerBase):
    """The handler of Snakemake's option `--logger dagrpo`. One per run."""

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        settings = self.common_settings
        self._run = Run()
        self._stopping = False
        self._console = Console(
            file=sys.stdout if settings.stdout else sys.stderr, no_color=settings.nocolor or None, highlight=False
        )
        if not self._console.is_terminal:
            self._console.width = MAX_WIDTH
        self._quiet = {str(choice) for choice in settings.quiet or ()}
        wordy = settings.verbose or settings.printshellcmds or settings.debug_dag
        self._own_words = _own_words(self) if wordy else None
        self._planned = False
        self._show: dict[LogEvent | None, Callable[[LogRecord], None]] = {
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
        logging.Handler.handleError = _handle_error  # type: ignore[method-assign,assignment]

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

    def _say(self, text: str | None, *, about: str = "", style: str = "") -> None:
        """Print a line, unless --quiet suppresses it or Snakemake's own messages contain it."""
        if text and self._own_words is None and not {"all", about} & self._quiet:
            self._console.print(text, style=style, markup=False, soft_wrap=True)

    def _plan(self, record: LogRecord) -> None:
        line = self._run.plan(record.__dict__["stats"])
        if self._planned:  # a dry run counts its jobs twice
            return
        self._planned = True
        if self.common_settings.dryrun:
            self._say(record.getMessage())
        elif self._run.total > 1 and not _under_dvc():
            self._say(line, about="progress")

    def _start(self, record: LogRecord) -> None:
        if not self.common_settings.dryrun:
            self._say(self._run.start(record), about="rules", style="bold")

    def _finish(self, record: LogRecord) -> None:
        self._say(self._run.finish(record), about="progress", style="green")

    def _fail(self, record: LogRecord) -> None:
        self._say(self._run.fail(record), style="red")

    def _fail_group(self, record: LogRecord) -> None:
        for job in record.__dict__["job_error_info"]:
            self._run.failed += [self._run.running.pop(job["jobid"])] if job["jobid"] in self._run.running else []

    def _message(self, record: LogRecord) -> None:
        text = record.getMessage() if record.msg else ""
        if text.startswith(wording.STOPPING):
            self._stopping = True
            self._say("Stopping: what is finished is kept.", style="yellow")
        elif not wording.is_noise(text):
            self._say(wording.message_text(text), style="yellow" if record.levelname == "WARNING" else "")

    def _error(self, record: LogRecord) -> None:
        text, exception = record.getMessage(), str(getattr(record, "exception", ""))
        if not wording.is_the_shells(text):
            self._console.print(
                wording.error_text(exception, text, sys.argv[1:]), style="red", markup=False, soft_wrap=True
            )
        if text.endswith(wording.FAILED):
            self._show_panel()

    def _show_panel(self) -> None:
        """Show the panel of the jobs that failed."""
        jobs = [job for job in [*self._run.failed, *self._run.running.values()] if job.log is not None]
        failures = [failure_of(job, stopping=self._stopping) for job in jobs]
        command = (
            _dvcs_command()
            if _under_dvc()
            else shlex.join([Path(sys.argv[0]).name, *corrected(sys.argv[1:], failures)])
        )
        self._console.print(panel(failures, command), width=min(self._console.width, MAX_WIDTH))


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
    """Return True if DVC runs this workflow for one of its stages."""
    return "DVC_STAGE" in os.environ


def _dvcs_command() -> str:
    """Return the command that resumes: in the copy of `dvc exp run --temp` the one that made the copy."""
    is_copy, note = Path(os.environ.get("DVC_ROOT", "")).resolve() != Path.cwd(), Path(".state/dvc.json")
    return str(json.loads(note.read_text())["command"]) if is_copy and note.exists() else "dvc repro"


_handle_any_error = logging.Handler.handleError
_told_of = set[int]()


def _handle_error(handler: Handler, record: LogRecord) -> None:
    """Print one message, once, instead of a traceback, if Snakemake's log cannot be written. Replaces every handler's own."""
    error = sys.exc_info()[1]
    if not (isinstance(error, OSError) and error.errno in NO_ROOM):
        _handle_any_error(handler, record)
    elif id(handler) not in _told_of:
        _told_of.add(id(handler))
        name = getattr(handler, "baseFilename", "a log")
        free = shutil.disk_usage(Path(name).parent if os.path.isabs(name) else ".").free
        print(
            f"{name}: {error.strerror}: it misses lines, as {free:,} bytes are free there.", file=sys.stderr, flush=True
        )


def _interrupted(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print one line for Ctrl-C before the first job, or for a second time; show anything else as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, traceback)
