"""What every verifier is: how it reads an answer, and how it compares one with the ground truth, fast and exactly.

Not here: what a right answer is worth (score.py), and answers that no fast comparison can tell (pool.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dagrpo.params.base import Extractor


def same_text(answer: str, other: str) -> bool:
    """Whether two answers are the same text, but for spaces."""
    return "".join(answer.split()) == "".join(other.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Any text is read in linear time, and none makes a verifier fail.

    `check` raises UserError when a ground truth is none for the verifier, and so may `equal`.
    """

    name: str
    extract: Callable[[str, Extractor], str | None]  # the policy's text -> its answer, None when it gives none
    equal: Callable[[str, str], bool | None]  # answer, ground truth -> None: it takes math-verify to tell
    formatted: Callable[[str], bool]  # whether the text has the form the verifier asks for
    check: Callable[[str], None]  # UserError in a sentence when a ground truth is none
    # Two answers, as extracted -> whether they are one and the same, for a vote; None: it takes math-verify to tell.
    same: Callable[[str, str], bool | None] = same_text
    by_report: bool = False  # no text is read: what the attempt's program or environment reports decides
    literal: bool = False  # extractor exact compares texts as they stand, and does not ask `equal`
