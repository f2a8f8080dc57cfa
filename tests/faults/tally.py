"""What was broken, and what came of it: a line per fault while the harness runs, a table at its end."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something broken on purpose. `differences`: what was not as it should be afterwards, in words; none is good.

    `aim`: what it was waited for; "": nothing was to be met.
    """

    kind: str
    what: str
    aim: str = ""
    differences: tuple[str, ...] = ()

    def line(self) -> str:
        """For the screen, while the harness runs."""
        aim = f" (aim: {self.aim})" if self.aim else ""
        return f"{self.kind}: {self.what}{aim}: " + ("; ".join(self.differences) or "as it should be")


@dataclass(slots=True)
class Tally:
    """All faults of one run of the harness."""

    faults: list[Fault] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def add(self, fault: Fault) -> Fault:
        """Keep it, and print its line with the time that has passed."""
        self.faults.append(fault)
        print(f"[{time.monotonic() - self._started:6.0f} s] {len(self.faults):4d} {fault.line()}", flush=True)
        return fault

    def counted(self, what: Literal["kind", "aim"]) -> Counter[str]:
        """How many faults there were, by one of their words."""
        return Counter(getattr(fault, what) for fault in self.faults)

    def table(self) -> list[str]:
        """How many faults there were of each kind, and how many of them made a difference."""
        caused = self.counted("kind")
        differed = Counter(fault.kind for fault in self.faults if fault.differences)
        rows = [f"{kind:42} {count:7d} {differed[kind]:12d}" for kind, count in sorted(caused.items())]
        total = f"{'all':42} {caused.total():7d} {differed.total():12d}"
        return [f"{'fault':42} {'caused':>7} {'differences':>12}", *rows, total]

    def differences(self, kind: str = "") -> list[str]:
        """The line of every fault that made a difference, of the kinds that begin with `kind`."""
        return [fault.line() for fault in self.faults if fault.differences and fault.kind.startswith(kind)]
