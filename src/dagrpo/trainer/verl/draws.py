"""Prompts of each step: those planned, those drawn."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dagrpo.core.errors import TransientError, UserError
from dagrpo.utils.files import remove

SHOWN = 5  # rows that a message names


class DrawLog:
    """Folder with a file per step, to which the processes that grade append: a line with the row of a response, or with an error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step: int | None = None
        self._file: IO[str] | None = None

    def add(self, question: Mapping[str, Any], error: str | None) -> None:
        """Append a response, or why it cannot be graded. A question without a step belongs to a check, and is left out."""
        if (step := question.get("step")) is None:
            return
        if step != self._step or self._file is None:
            self.close()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._step, self._file = step, (self._folder / str(step)).open("a", buffering=1)  # a line is one write
        self._file.write(json.dumps(question["index"] if error is None else error) + "\n")

    def close(self) -> None:
        """Close the file of the last step."""
        if self._file is not None:
            self._file.close()


class Comparison:
    """Comparison of the prompts that verl draws with those that its own data loader drew before the run.

    The steps up to `finished` are those of earlier attempts, which have compared them; what is left of later ones is removed.
    """

    def __init__(self, planned: Path | None, log: Path, samples: int, finished: int) -> None:
        self._planned = None if planned is None else planned.open()
        self._log, self._samples, self._finished = log, samples, finished
        for step in self._logged():
            if step > finished:
                remove(log / str(step))

    def require(self, step: int) -> None:
        """Compare a step, from 1, after all those before it.

        Raises UserError if its prompts are others, if a response could not be graded, or if responses are missing in a step of which
        verl has a checkpoint; TransientError if they are missing in a later one, which is taken again.
        """
        self.require_graded()
        path = self._log / str(step)
        drawn = Counter(_lines(path))
        planned = [] if self._planned is None else json.loads(self._planned.readline())
        if not planned or (step <= self._finished and not drawn):  # without a file: compared by an earlier attempt
            remove(path)
            return
        expected = Counter({row: count * self._samples for row, count in Counter(planned).items()})
        if more := drawn - expected:
            raise UserError(
                f"verl draws other prompts in step {step} than its data loader did before the run: rows {_some(more)}, and not "
                f"{_some(expected - drawn)}. Use verl 0.9.1 unchanged, and no key of training.backend.settings for the order; then "
                f"{self._remedy}."
            )
        if missing := expected - drawn:
            lost = f"verl has lost {missing.total()} responses in step {step}, to the rows {_some(missing)}"
            if step <= self._finished:
                raise UserError(f"{lost}, and has saved a checkpoint since: {self._remedy}.")
            raise TransientError(f"{lost}.")
        remove(path)

    @property
    def _remedy(self) -> str:
        return f"remove {self._log.parent} to train again"

    def require_graded(self) -> None:
        """Raise UserError with the first response that could not be graded, without which verl would go on."""
        for step in self._logged():
            for error in _lines(self._log / str(step)):
                if isinstance(error, str):
                    again = f" When that is mended, {self._remedy}." if step <= self._finished else ""
                    raise UserError(f"A response of step {step} cannot be graded: {error}.{again}")

    def _logged(self) -> list[int]:
        return sorted(int(path.name) for path in self._log.glob("*"))


def _lines(path: Path) -> Iterator[Any]:
    if path.is_file():
        yield from map(json.loads, path.read_text().splitlines())


def _some(rows: Counter[int]) -> str:
    more = len(rows) - SHOWN
    return (", ".join(map(str, sorted(rows)[:SHOWN])) or "none") + (f" and {more} more" if more > 0 else "")
