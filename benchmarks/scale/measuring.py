"""Processor time, memory and exponents for tables of growth, and their Markdown."""

import math
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The processor time of a command with all that it starts, and the memory of its largest process."""

    seconds: float
    mebibytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.mebibytes} MiB"


def cost_of(command: Sequence[str], folder: Path) -> Cost:
    """Run a command to its end and return its cost. Raises SystemExit with its output if it fails."""
    with tempfile.NamedTemporaryFile("r") as figures:
        timed = ["/usr/bin/time", "--quiet", "-f", "%U %S %M", "-o", figures.name, *command]
        done = subprocess.run(timed, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        user, system, kibibytes = figures.read().split()
    return Cost(seconds=float(user) + float(system), mebibytes=int(kibibytes) >> 10)


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of a call in this process, in seconds."""
    before = _processor_seconds()
    work()
    return _processor_seconds() - before


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the growth of a cost from the first size to the last: 0 if it stays, 1 if it doubles with the size, 2 for squared."""
    return math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table for `python -m benchmarks.figures TITLE --table FILE`."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
