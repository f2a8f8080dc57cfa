"""When to kill: after a random pause, or a moment after a file has been written that only some phases of a run write."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20.0  # seconds for the event that an aim waits for; to kill without it would be to kill mostly imports
Stamps = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Fires at a random moment within some seconds of the first change of a file; without files, of now."""

    name: str
    files: tuple[str, ...] = ()  # patterns below the clone
    within: float


AIMS = (
    Aim(name="at any time", within=10.0),
    Aim(name="a stage starts", files=("logs/tiny/*.log", "logs/tiny/seed_3/*[!r].log"), within=8.0),
    Aim(name="a server starts", files=("logs/tiny/**/*.server.log",), within=10.0),
    Aim(name="weights reach the server", files=("/dev/shm/dagrpo-weights-*",), within=0.5),
    Aim(name="a step is finished", files=(".state/tiny-*/metrics/step_*.json",), within=0.5),
    Aim(name="a state is written", files=(".state/tiny-*/.step_*", ".state/tiny-*/step_*/*"), within=0.1),
    Aim(name="outputs are written", files=("*/tiny/**/.*.part", "results/tiny/runs/seed_3/**/.*.part/*"), within=0.1),
    Aim(name="a stage has ended", files=(".state/ran/tiny/*.json",), within=2.0),
    Aim(name="runs are recorded", files=("mlflow.db", ".state/tracking.synced.json"), within=2.0),
    Aim(name="outputs are versioned", files=("dvc.lock", ".dvc/tmp/rwlock"), within=1.0),
)


def choose(draw: random.Random, fired: Mapping[str, int]) -> Aim:
    """One of all; those that have fired seldom are likelier."""
    return draw.choices(AIMS, weights=[1 / (1 + fired.get(aim.name, 0)) for aim in AIMS])[0]


class Shot:
    """An aim that waits for its moment."""

    def __init__(self, aim: Aim, folder: Path, draw: random.Random) -> None:
        self.name = aim.name
        self._aim = aim
        self._folder = folder
        self._pause = draw.uniform(0, aim.within)
        self._seen = self._stamps()
        self._due = None if aim.files else time.monotonic() + self._pause
        self._gives_up = time.monotonic() + PATIENCE

    def is_due(self) -> bool:
        """To be asked again and again."""
        if self._due is None and self._has_changed():
            self._due = time.monotonic() + self._pause
        return self._due is not None and time.monotonic() >= self._due

    def is_in_vain(self) -> bool:
        """Whether another aim should be chosen: the event does not come."""
        return self._due is None and time.monotonic() >= self._gives_up

    def _has_changed(self) -> bool:
        before, self._seen = self._seen, self._stamps()
        return any(before.get(path) != stamp for path, stamp in self._seen.items())

    def _stamps(self) -> Stamps:
        stamps: Stamps = {}
        for pattern in self._aim.files:
            top = Path("/") if pattern.startswith("/") else self._folder
            for path in top.glob(pattern.lstrip("/")):
                try:
                    status = path.stat()
                except OSError:  # it is gone again
                    continue
                stamps[path] = (status.st_ino, status.st_mtime_ns)
        return stamps
