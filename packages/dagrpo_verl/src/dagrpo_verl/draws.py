"""Attempts of each step: those planned, those made."""

import itertools
import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import IO

from dagrpo.core.errors import TransientError, UserError
from dagrpo.core.experiment import task_metric
from dagrpo.trainer.sampling.usable import require_learnable
from dagrpo.utils.files import read_json, remove, write_json

DRAWS = "draws"  # the log's folder
SECONDS_BETWEEN_LOOKS = 0.5
SHOWN = 5  # rows that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Attempt that has ended, as far as the checks of a step read it."""

    index: int  # of the row
    error: str = ""  # why it could not be made or graded
    excluded: bool = False
    learned: bool = True
    stop_reason: str = ""
    fault: str = ""
    task: str = ""
    reward: float = 0.0
    right: bool = False
    tokens: int = 0  # that the policy wrote


class DrawLog:
    """Folder with files of each step: every process that makes attempts, on whatever node, appends a line for each to its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = 0
        self._file: IO[str] | None = None

    def add(self, step: int, drawn: Drawn) -> None:
        """Append an attempt. Step 0 is that of a check, and is left out."""
        if not step:
            return
        if step != self._step or self._file is None:
            self.close()
            self._folder.mkdir(parents=True, exist_ok=True)
            own = self._folder / f"{step}.{socket.gethostname()}.{os.getpid()}"
            self._step, self._file = step, own.open("a", buffering=1)  # a line is one write
        self._file.write(json.dumps(asdict(drawn)) + "\n")
        os.fsync(self._file.fileno())  # for another node

    def close(self) -> None:
        """Close the file of the last step."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a run's attempts with the prompts that verl's own data loader drew before it, and with max_excluded.

    The steps up to `finished` are those of earlier executions, which have compared them.
    """

    planned: Path | None  # a line for each step; None: not known before
    log: Path
    samples: int  # of each prompt
    max_excluded: float
    finished: int
    patience: float = 0.0  # most seconds until all that other nodes have written can be read
    tasks: tuple[str, ...] = ()  # of a mixture; of a single task none

    def forget_later_steps(self) -> None:
        """Remove what is left of steps after `finished`, which are taken again."""
        for step in self._logged():
            if step > self.finished:
                self._forget(step)

    def of_tasks(self, step: int) -> dict[str, float]:
        """Return the metrics of each task of a mixture, NaN for one without an attempt; {} of a single task, and of steps below 1.

        They are kept, since the attempts of a compared step are not.
        """
        if step < 1 or not self.tasks:
            return {}
        kept, drawn = self.log / f"of_tasks_{step}.json", self._await(step, self._expected(step))
        if drawn or not kept.is_file():
            write_json(kept, {name: each for task in self.tasks for name, each in self._of_task(task, drawn)})
        return {name: math.nan if each is None else float(each) for name, each in read_json(kept).items()}

    def _of_task(self, task: str, drawn: Sequence[Drawn]) -> Iterator[tuple[str, float | None]]:
        own = [each for each in drawn if each.task == task]
        learned = [each for each in own if each.learned]
        rewards = [{each.reward for each in learned if each.index == row} for row in {each.index for each in learned}]
        means: dict[str, list[float]] = {
            "reward_mean": [each.reward for each in learned],
            "correct_fraction": [each.right for each in learned],
            "tokens_mean": [each.tokens for each in learned],
            "no_signal_fraction": [len(each) == 1 for each in rewards],
        }
        yield from ((task_metric(task, name), fmean(values) if values else None) for name, values in means.items())
        yield task_metric(task, "groups"), len(own) / self.samples

    def require(self, step: int) -> None:
        """Check a step, from 1, after all those before it.

        Raises UserError if an attempt could not be graded, if too many were excluded, if the prompts are others, or if responses are
        missing in a step of which verl has a checkpoint; TransientError if they are missing in a later one, which is taken again.
        """
        self.require_graded()
        planned = self._planned(step)
        drawn = self._await(step, self._expected(step))
        if drawn:
            self._require_learnable(drawn, step)
        if planned and (drawn or step > self.finished):  # else it has been compared by an earlier execution
            self._require_planned(Counter(each.index for each in drawn), Counter(planned), step)
        self._forget(step)

    def require_graded(self) -> None:
        """Raise UserError with the first attempt that could not be graded, without which verl would continue."""
        for step in self._logged():
            for each in self._read(step):
                if each.error:
                    again = f" After fixing it, {self._remedy}." if step <= self.finished else ""
                    raise UserError(f"A response of step {step} cannot be graded: {each.error}.{again}")

    def require_any_learned(self) -> None:
        """Raise UserError if nothing in the step in which verl has ended can be learned from: that is why it has."""
        for step in self._logged()[-1:]:
            drawn = self._read(step)
            if len(drawn) >= self.samples and not any(each.learned for each in drawn):
                self._require_learnable(drawn, step)

    def _require_learnable(self, drawn: Sequence[Drawn], step: int) -> None:
        try:
            require_learnable(drawn, self.max_excluded, step)
        except UserError as error:
            if step > self.finished:
                raise
            raise UserError(f"{error} verl has saved a checkpoint since: {self._remedy}.") from None

    def _require_planned(self, drawn: Counter[int], planned: Counter[int], step: int) -> None:
        expected = Counter({row: count * self.samples for row, count in planned.items()})
        if more := drawn - expected:
            raise UserError(
                f"verl draws other prompts in step {step} than its data loader did before the run: rows {_some(more)}, and not "
                f"{_some(expected - drawn)}. Use verl 0.9.1 unchanged, and no key of training.backend.settings for the order; then "
                f"{self._remedy}."
            )
        if missing := expected - drawn:
            lost = f"verl has lost {missing.total()} responses in step {step}, to the rows {_some(missing)}"
            if step <= self.finished:
                raise UserError(f"{lost}, and has saved a checkpoint since: {self._remedy}.")
            raise TransientError(f"{lost}.")

    def _planned(self, step: int) -> list[int]:
        return [] if self.planned is None else list(json.loads(self.planned.read_text().splitlines()[step - 1]))

    def _expected(self, step: int) -> int:
        """Return the number of attempts to wait for: of an earlier execution's step none."""
        return len(self._planned(step)) * self.samples if step > self.finished else 0

    @property
    def _remedy(self) -> str:
        return f"remove {self.log.parent} to train again"

    def _logged(self) -> list[int]:
        return sorted({int(path.name.partition(".")[0]) for path in self.log.glob("[0-9]*")})  # not .nfs...

    def _await(self, step: int, expected: int) -> list[Drawn]:
        """Return the attempts of a step once there are as many as expected, or in the end those that are there."""
        deadline = time.monotonic() + self.patience
        while len(drawn := self._read(step)) < expected and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return drawn

    def _read(self, step: int) -> list[Drawn]:
        lines = (path.read_text().splitlines(keepends=True) for path in sorted(self.log.glob(f"{step}.*")))
        return [Drawn(**json.loads(line)) for line in itertools.chain(*lines) if line.endswith("\n")]

    def _forget(self, step: int) -> None:
        for path in self.log.glob(f"{step}.*"):
            remove(path)


def _some(rows: Counter[int]) -> str:
    more = len(rows) - SHOWN
    return (", ".join(map(str, sorted(rows)[:SHOWN])) or "none") + (f" and {more} more" if more > 0 else "")
