"""A stage's progress bar and final summary, written to stderr."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from dagrpo.core.escape import visible

SECONDS_BETWEEN_LINES = 10.0
PIPE_WIDTH = 200  # characters
Item = TypeVar("Item")


class VisibleConsole(Console):
    """A terminal with characters without a glyph escaped, so that no text hides, reorders or controls."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def plain_console() -> VisibleConsole:
    """Return a console for the output of commands: nothing in a text is markup. A pipe breaks no line."""
    console = VisibleConsole(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def size(count: float) -> str:
    """Format bytes, such as 1.5 GiB, 12.0 MiB or 0.5 KiB; less than 0.1 of a unit in the next smaller one."""
    unit, name = (2**30, "GiB") if count >= 2**30 / 10 else (2**20, "MiB") if count >= 2**20 / 10 else (2**10, "KiB")
    return f"{count / unit:,.1f} {name}"


def duration(seconds: float) -> str:
    """Format a duration, such as 0.04 s, 2.3 s, 45 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 59.5:
        return f"{seconds:.2g} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


_console = VisibleConsole(stderr=True, markup=False, emoji=False)  # a name with brackets or colons stays as it is
_newest = list[int]()  # the count of the newest bar, which outlives it: error messages use it


class Bar:
    """A counter of finished work."""

    def __init__(self, show: Callable[[int, str], None]) -> None:
        self._show = show
        _newest[:] = [0]

    def advance(self, number: int = 1, note: str = "") -> None:
        """Count units of work, and show them with a note."""
        _newest[0] += number
        self._show(number, note)


class _Lines:
    """Progress for logs and pipes, where a bar would be noise: one line every ten seconds."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def is_due(self) -> bool:
        """Return True, and begin to wait for the next line, if the last line is ten seconds old."""
        due = (now := time.monotonic()) - self._last >= SECONDS_BETWEEN_LINES
        self._last = now if due else self._last
        return due

    def say(self, text: str) -> None:
        """Print a line, and the time since the beginning."""
        say(f"{text} ({time.monotonic() - self._started:.0f} s)")


def _counting(description: str, total: int, *, brief: bool) -> Callable[[int, str], None]:
    """Return what shows finished units as lines, the last of them at the end; of brief work without a line before, none."""
    lines, done, has_end = _Lines(), 0, not brief

    def show(number: int, note: str) -> None:
        nonlocal done, has_end
        done += number
        due = lines.is_due()
        has_end = has_end or due
        if due or (done >= total and has_end):
            lines.say(f"{description}: {done}/{total} {note}")

    return show


def finished() -> int | None:
    """Return how many units the newest bar of this process has counted; None before the first bar."""
    return _newest[0] if _newest else None


@contextmanager
def progress(description: str, total: int, *, brief: bool = False) -> Iterator[Bar]:
    """Show the progress of `total` units of work: a bar on a terminal, a line now and then elsewhere.

    `brief`: leave no trace of work that takes less than ten seconds.
    """
    if not _console.is_terminal:
        yield Bar(_counting(description, total, brief=brief))
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=_console, transient=brief) as bars:
        task = bars.add_task(description, total=total, note="")
        yield Bar(lambda number, note: bars.update(task, advance=number, note=note))


def counted(items: Sequence[Item], description: str) -> Iterator[Item]:
    """Yield the items under a bar, which leaves no trace of work that takes less than ten seconds."""
    with progress(description, len(items), brief=True) as bar:
        for item in items:
            yield item
            bar.advance()


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Print at once that an action starts and, while notes come, that it continues; at the end, its duration.

    In other threads than the main one it prints lines on a terminal, too: its spinners cannot stand beside each other.
    """
    started, lines = time.monotonic(), _Lines()
    if _console.is_terminal and threading.current_thread() is threading.main_thread():
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=_console, transient=True) as bars:
            task = bars.add_task(f"{what}: starting", total=None, note="")
            yield lambda note: bars.update(task, note=note)
    else:
        say(f"{what}: starting")
        yield lambda note: lines.say(f"{what}: {note}") if lines.is_due() else None
    say(f"{what}: ready after {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    """Print one message."""
    _console.print(text, highlight=False, soft_wrap=True)


def summary(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a stage's summary as a two-column table."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    _console.print(table)
