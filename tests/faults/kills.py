"""A run that is killed again and again at random times, and started again with the same command until it is done."""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.faults import kinds, said
from tests.faults.aftermath import Witness, orphans, other_bytes
from tests.faults.tally import Fault, Tally
from tests.workflow import clones

SECONDS_BETWEEN_LOOKS = 0.1
SPARED_WHILE_PLANNING = 0.9  # else most kills would come before any stage has been started


@dataclass(slots=True, kw_only=True)
class Road:
    """One experiment's way to its end, with kills on it. What differs afterwards is added to the tally with the last kill."""

    folder: Path
    command: tuple[str, ...]
    expected: Mapping[str, str]
    seed: int
    kills: int
    pause: float  # mean seconds between two kills
    tally: Tally
    seconds: float = 3600.0
    differences: list[str] = field(default_factory=list)
    _killed: Counter[str] = field(default_factory=Counter)  # how many of each kind
    _last: Fault | None = None

    def walk(self) -> int:
        """Go to the end; how many kills there were on the way."""
        draw, witness = random.Random(self.seed), Witness(self.folder)
        print(f"A run with up to {self.kills} kills, seed {self.seed}: {' '.join(self.command)}", flush=True)
        deadline, code = time.monotonic() + self.seconds, 1
        while code != 0 and time.monotonic() < deadline:
            before = self._killed.total()
            code = self._once(draw, witness)
            if code != 0 and self._killed.total() == before:
                self._differs(f"refused without a kill: {said.sentence_in(self.folder, self._output())}")
                break
            if draw.random() < 0.5:  # whoever starts it again does so at once, or when all is quiet
                self._differs(*orphans(self.folder))
        self._end(witness, done=code == 0)
        return self._killed.total()

    def _once(self, draw: random.Random, witness: Witness) -> int:
        (self.folder / "output.txt").unlink(missing_ok=True)
        process = clones.start(self.folder, *self.command)
        due = time.monotonic() + draw.expovariate(1 / self.pause)
        while process.poll() is None:
            witness.look()
            if time.monotonic() >= due and self._killed.total() < self.kills:
                self._kill(process, draw)
                due = time.monotonic() + draw.expovariate(1 / self.pause)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return process.returncode

    def _kill(self, process: "subprocess.Popen[str]", draw: random.Random) -> None:
        alive = kinds.running(self.folder)
        if alive.keys() <= {kinds.Kind.SNAKEMAKE} and draw.random() < SPARED_WHILE_PLANNING:
            return
        kind = kinds.choose(draw, alive, self._killed)
        try:
            what = kinds.kill(kind, process.pid, alive, draw)
        except (psutil.Error, ProcessLookupError):  # it has just ended
            return
        self._killed[kind] += 1
        self._last = self.tally.add(Fault(kind=f"kill: {kind}", what=what))

    def _end(self, witness: Witness, *, done: bool) -> None:
        self._differs(*([] if done else ["it never ended well"]), *orphans(self.folder))
        self._differs(*other_bytes(self.expected, self.folder), *witness.lost(), *witness.left_outside())

    def _differs(self, *differences: str) -> None:
        if differences:
            what = "no kill" if self._last is None else f"last kill: {self._last.what}"
            self.differences.extend(differences)
            self.tally.add(Fault(kind="end of a killed run", what=f"seed {self.seed}, {what}", differences=differences))

    def _output(self) -> str:
        return (self.folder / "output.txt").read_text()
