"""Results of an audit, and the comparison of recorded with derived tables."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.core.types import EXCLUDED

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST = 60  # characters of a value that is shown
MOST_SHOWN = 3  # differences of one check
ABSOLUTE, RELATIVE = 1e-5, 1e-4  # of numbers that another processor may round differently
# Whatever reading a forged file raises, which may hold anything where a number, a list or a name is due.
FORGED = (
    *(UserError, ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RecursionError),
    *(TypeError, ValueError),  # and so pyarrow's
)
ROUNDED = {"logprob_differences": 0.07}  # relative: twice what rollout.table rounds them by


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Extent of an audit."""

    share: float  # of the steps and of the test problems
    steps: Sequence[int] | None  # in the place of a share of them
    dice: random.Random
    states: bool  # whether to begin at saved states
    sft: bool  # whether to fine-tune again
    scratch: Path

    def drawn(self, possible: Sequence[int]) -> list[int]:
        """Return a share of some numbers, at least one, ascending."""
        count = min(len(possible), max(1, round(self.share * len(possible))))
        return sorted(self.dice.sample(possible, count))


class State(StrEnum):
    """Result of a check."""

    EQUAL = "equal"  # to the bit, or exactly derived
    WITHIN = "within"  # a stated tolerance
    DIFFERS = "differs"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of an audit's table."""

    where: str  # such as "train, seed 0, step 17"
    what: str  # such as "tokens"
    state: State
    checked: str = ""  # how much of it
    note: str = ""  # a tolerance, or why it was not checked
    faults: tuple[str, ...] = ()  # sentences; the first ones

    @classmethod
    def of(
        cls, where: str, what: str, faults: Sequence[str], checked: str = "", state: State = State.EQUAL, note: str = ""
    ) -> "Check":
        """Return a check that differs if there are faults, else one of this state."""
        found = State.DIFFERS if faults else state
        return cls(where=where, what=what, state=found, checked=checked, note=note, faults=tuple(faults[:MOST_SHOWN]))

    @classmethod
    def unchecked(cls, where: str, what: str, reason: str) -> "Check":
        """Return a check that could not be done, with the reason."""
        return cls(where=where, what=what, state=State.UNCHECKED, note=reason)


def naming_errors(where: str, checks: Iterator[Check]) -> Iterator[Check]:
    """Yield the checks; a forged file that cannot be read, or used, ends them with a check that differs."""
    try:
        yield from checks
    except FORGED as error:
        yield Check.of(where, "files", [fault_of(error)])


def fault_of(error: Exception) -> str:
    """Return a sentence on what a forged file has raised."""
    return str(error) if isinstance(error, UserError) else f"a file cannot be used: {type(error).__name__}: {error}"


def compare(where: str, what: str, recorded: "pa.Table", derived: "pa.Table", columns: Iterable[str]) -> Check:
    """Compare columns of two tables of attempts, row by row."""
    faults, state = list[str](), State.EQUAL
    if recorded.num_rows != derived.num_rows:
        faults.append(f"the table has {recorded.num_rows} attempts, and {derived.num_rows} are derived")
    names = tuple(name for name in columns if name in recorded.column_names)
    rows = zip(recorded.to_pylist(), derived.to_pylist(), strict=False)
    for place, (mine, theirs) in enumerate(rows):
        for name in names:
            if name == "fault" and mine["stop_reason"] == theirs["stop_reason"] == EXCLUDED:
                continue  # the words of another machine's failure
            if (found := _state(mine[name], theirs[name], ROUNDED.get(name, RELATIVE))) is State.DIFFERS:
                faults.append(f"{row_name(place, mine)}: {name} is {_pair(mine[name], theirs[name])}")
            state = found if found is State.WITHIN else state
    note = f"within {ABSOLUTE:g}" if state is State.WITHIN else ""
    return Check.of(where, what, faults, f"{recorded.num_rows:,} attempts", state=state, note=note)


def row_name(place: int, row: Mapping[str, Any]) -> str:
    """Return the name of a table's row, for a message."""
    return f"row {place} (problem {row['problem_index']}, sample {row['sample_index']})"


def figures(where: str, what: str, recorded: Mapping[str, Any], derived: Mapping[str, Any]) -> Check:
    """Compare numbers by name."""
    states = {name: _state(recorded.get(name), value, RELATIVE) for name, value in derived.items()}
    faults = [f"{n} is {_pair(recorded.get(n), derived[n])}" for n, each in states.items() if each is State.DIFFERS]
    within = State.WITHIN in states.values()
    note = f"within {ABSOLUTE:g}" if within else ""
    return Check.of(
        where, what, faults, f"{len(states)} figures", state=State.WITHIN if within else State.EQUAL, note=note
    )


def _pair(mine: Any, theirs: Any) -> str:
    if isinstance(mine, list) and isinstance(theirs, list):
        place = next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        if place is None:
            return f"of length {len(mine)}, and {len(theirs)} is derived"
        return f"{_brief(mine[place])} at place {place}, and {_brief(theirs[place])} is derived"
    return f"{_brief(mine)}, and {_brief(theirs)} is derived"


def _brief(value: Any) -> str:
    return one_line(repr(value), LONGEST)


def _state(mine: Any, theirs: Any, relative: float) -> State:
    if mine == theirs:
        return State.EQUAL
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        if len(mine) != len(theirs):
            return State.DIFFERS
        states = {_state(a, b, relative) for a, b in zip(mine, theirs, strict=True)}
        return next(each for each in (State.DIFFERS, State.WITHIN, State.EQUAL) if each in states)
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) and math.isnan(theirs):
            return State.EQUAL
        return State.WITHIN if math.isclose(mine, theirs, rel_tol=relative, abs_tol=ABSOLUTE) else State.DIFFERS
    return State.DIFFERS
