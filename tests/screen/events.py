"""Snakemake's log records as it writes them, and a screen that shows them to a string."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import OutputSettingsLoggerInterface

from snakemake_logger_plugin_dagrpo import LogHandler

NOW = 1_800_000_000.0


def record(text: str | None, event: LogEvent | None = None, *, at: float = NOW, **fields: Any) -> logging.LogRecord:
    extra = fields if event is None else {"event": event, **fields}
    return logging.makeLogRecord({"msg": text, "levelname": "INFO", "created": at, **extra})


def plan(**counts: int) -> logging.LogRecord:
    return record("Job stats:\njob  count", LogEvent.RUN_INFO, stats={**counts, "total": sum(counts.values())})


def started(number: int, rule: str, message: str, log: str | None, *, at: float = NOW) -> logging.LogRecord:
    fields = {"jobid": number, "rule_name": rule, "rule_msg": message, "log": [log] if log else [], "wildcards": {}}
    return record(f" Rule: {rule}, Jobid: {number}", LogEvent.JOB_INFO, at=at, **fields)


def finished(number: int, *, at: float = NOW) -> logging.LogRecord:
    return record(f"Finished jobid: {number}", LogEvent.JOB_FINISHED, at=at, job_id=number)


def failed(number: int, *, at: float = NOW) -> logging.LogRecord:
    return record(f"Error in rule, jobid: {number}", LogEvent.JOB_ERROR, at=at, jobid=number)


def error(exception: str, text: str) -> logging.LogRecord:
    return record(text, LogEvent.ERROR, exception=exception)


END = error("WorkflowError", "WorkflowError:\nAt least one job did not complete successfully.")


class Shown:
    """A screen, and what it has shown."""

    def __init__(self, **settings: Any) -> None:
        defaults = dict.fromkeys(("printshellcmds", "nocolor", "debug_dag", "verbose", "stdout", "dryrun"), False)
        common = SimpleNamespace(**{**defaults, "quiet": None, "show_failed_logs": False, **settings})
        self.handler = LogHandler(cast(OutputSettingsLoggerInterface, common), None)

    def tell(self, *records: logging.LogRecord) -> None:
        for each in records:
            self.handler.handle(each)


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch, *arguments: str, **settings: Any) -> Iterator[tuple[Shown, io.StringIO]]:
    """A screen for `snakemake ARGUMENTS`, and the text that it writes."""
    text, hook = io.StringIO(), sys.excepthook
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/snakemake", *arguments])
    monkeypatch.setattr(sys, "stdout" if settings.get("stdout") else "stderr", text)
    monkeypatch.setenv("DAGRPO_SCREEN", "before")  # so that it is put back
    yield Shown(**settings), text
    sys.excepthook = hook
