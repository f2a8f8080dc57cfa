"""What a person sees while a stage works: a progress bar, and a summary at its end. Goes to stderr, never into outputs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

SECONDS_BETWEEN_LINES = 10.0
_console = Console(stderr=True)


class Advance(Protocol):
    """Something that counts finished work."""

    def advance(self, number: int = 1, note: str = "") -> None: ...


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, number: int = 1, note: str = "") -> None:
        self._progress.update(self._task, advance=number, note=note)


class _Lines:
    """For logs and pipes, where a bar would be noise: one line every ten seconds and one at the end."""

    def __init__(self, description: str, total: int) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._started = self._last = time.monotonic()

    def advance(self, number: int = 1, note: str = "") -> None:
        self._done += number
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES or self._done >= self._total:
            self._last = now
            _console.print(
                f"{self._description}: {self._done}/{self._total} {note} ({now - self._started:.0f} s)", highlight=False
            )


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show how far `total` units of work are: a bar on a terminal, a line now and then elsewhere."""
    if not _console.is_terminal:
        yield _Lines(description, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_console) as bars:
        yield _Bar(bars, bars.add_task(description, total=total, note=""))


def say(text: str) -> None:
    """Tell one thing in a sentence."""
    _console.print(text, highlight=False, markup=False, soft_wrap=True)


def summary(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print what a stage did, as a two-column table."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    _console.print(table)
