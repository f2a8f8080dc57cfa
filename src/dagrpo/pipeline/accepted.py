"""Edits to code that change no result, as a user says.

An entry of accepted.json, beside params.yaml, stands for an edit that cannot change a stage's results, as its author knows and no digest
shows. Records keep the code that really ran.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils.files import read_json, write_json

ACCEPTED = Path("accepted.json")
LONGEST = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """One edit to a stage's code whose standing results count as those of the code after it."""

    stage: str
    before: str  # the digest of the code that ran
    after: str
    by: str
    at: str  # ISO 8601
    because: str

    def __str__(self) -> str:
        about = f"{self.by}, {self.at[:10]}: {self.because}"
        return f"{self.stage}: code {self.before[:12]} counts as {self.after[:12]} ({one_line(about, LONGEST)})"


def acceptances() -> list[Acceptance]:
    """Read accepted.json. Raises UserError if it is damaged."""
    if not ACCEPTED.is_file():
        return []
    try:
        return [Acceptance(**entry) for entry in read_json(ACCEPTED)]
    except TypeError as error:
        raise UserError(f"{ACCEPTED} has an entry that `dagrpo accept` did not write ({error}): correct it.") from None


def acceptances_of(codes: Collection[str]) -> list[Acceptance]:
    """Return the acceptances of results that were made by one of these codes."""
    return [each for each in acceptances() if each.before in codes]


def is_accepted(stage: str, before: str, after: str) -> bool:
    """Return True if results of the code `before` count as those of `after`, over any number of acceptances."""
    edits = [(each.before, each.after) for each in acceptances() if each.stage == stage]
    reached, waiting = {before}, [before]
    while waiting:
        code = waiting.pop()
        new = {later for earlier, later in edits if earlier == code} - reached
        reached |= new
        waiting += new
    return after in reached


def accept(entries: Iterable[Acceptance]) -> None:
    """Add entries to accepted.json."""
    write_json(ACCEPTED, [asdict(each) for each in [*acceptances(), *entries]])
