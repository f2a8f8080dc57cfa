"""A run that is killed again and again, and started again with the same command until it is done."""

import random
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.faults import aims, kinds
from tests.faults.aftermath import Witness, orphans, other_bytes
from tests.faults.kinds import Kind
from tests.faults.tally import Fault, Tally
from tests.pipeline.snakemake import clones

from dagrpo.utils.files import read_json

SECONDS_BETWEEN_LOOKS = 0.03
SECONDS_BETWEEN_WITNESSES = 1.0  # who looks at every process
DVC_IS_LOCKED = (
    "Unable to acquire lock"  # by the Snakemake that a killed DVC has started, for as long as that takes to end
)
NOTHING_TO_DO = "Nothing to be done"  # says Snakemake, and calls none of its handlers
SPARED_WHILE_PLANNING = 0.9  # else many kills would come before any stage has been started


@dataclass(slots=True, kw_only=True)
class Road:
    """One experiment's way to its end, with kills on it. What differs afterwards is added to the tally with the last kill.

    Kinds of processes and aims that the tally has seldom are likelier. The same seed draws the same choices, as far as
    the run is in the same places when they are made.
    """

    folder: Path
    command: tuple[str, ...]
    expected: Mapping[str, str]
    seed: int
    kills: int
    tally: Tally
    seconds: float = 6 * 3600.0
    differences: list[str] = field(default_factory=list)
    _killed: int = 0
    _last: Fault | None = None

    def walk(self) -> int:
        """Go to the end; how many kills there were on the way."""
        draw, witness = random.Random(self.seed), Witness(self.folder)
        print(f"A run with up to {self.kills} kills, seed {self.seed}: {' '.join(self.command)}", flush=True)
        deadline, code = time.monotonic() + self.seconds, 1
        while code != 0 and time.monotonic() < deadline:
            before = self._killed
            code = self._once(draw, witness)
            if code != 0 and self._killed == before and DVC_IS_LOCKED not in self._output():
                self._differs(f"refused without a kill: {_sentence_in(self.folder, self._output())}")
                break
            # Whoever starts it again does so at once, or when all is quiet, as after a refusal.
            if self._killed == before or draw.random() < 0.5:
                self._differs(*orphans(self.folder))
        self._end(witness, done=code == 0)
        return self._killed

    def _once(self, draw: random.Random, witness: Witness) -> int:
        (self.folder / "output.txt").unlink(missing_ok=True)
        process = clones.start(self.folder, *self.command)
        shot, look_at = self._aimed(draw), 0.0
        while process.poll() is None:
            if time.monotonic() >= look_at:
                witness.look()
                look_at = time.monotonic() + SECONDS_BETWEEN_WITNESSES
            if self._killed < self.kills and shot.is_due():
                self._kill(process, draw, shot.name)
                witness.look()
            if shot.is_due() or shot.is_in_vain():
                shot = self._aimed(draw)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return process.returncode

    def _aimed(self, draw: random.Random) -> aims.Shot:
        return aims.Shot(aims.choose(draw, self.tally.counted("aim")), self.folder, draw)

    def _kill(self, process: "subprocess.Popen[str]", draw: random.Random, aim: str) -> None:
        alive = kinds.running(self.folder)
        if alive.keys() <= {Kind.SNAKEMAKE, Kind.DVC} and draw.random() < SPARED_WHILE_PLANNING:
            return
        killed = {kind: self.tally.counted("kind").get(f"kill: {kind}", 0) for kind in Kind}
        kind = kinds.choose(draw, alive, killed)
        victim = draw.choice(alive[kind]) if kind in alive else None
        try:
            what = kinds.kill(kind, process.pid, victim, draw)
        except (psutil.Error, ProcessLookupError):  # it has just ended
            return
        self._killed += 1
        self._last = self.tally.add(Fault(kind=f"kill: {kind}", what=what, aim=aim))

    def _end(self, witness: Witness, *, done: bool) -> None:
        self._differs(*([] if done else ["it never ended well"]), *orphans(self.folder))
        lost = witness.lost(had_nothing_to_do=NOTHING_TO_DO in self._output())
        self._differs(*other_bytes(self.expected, self.folder), *lost, *witness.left_outside())

    def _differs(self, *differences: str) -> None:
        if differences:
            what = "no kill" if self._last is None else f"last kill: {self._last.what}"
            self.differences.extend(differences)
            self.tally.add(Fault(kind="end of a killed run", what=f"seed {self.seed}, {what}", differences=differences))

    def _output(self) -> str:
        return (self.folder / "output.txt").read_text()


def _sentence_in(folder: Path, output: str) -> str:
    """Why a command was refused: as the stage that failed has written it down, else the last line of the output."""
    failures = sorted((folder / ".state/failures").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if failures and "stage failed" in output:
        return str(read_json(failures[-1])["sentence"])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
