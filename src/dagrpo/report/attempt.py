"""Display form of an attempt, for the report, `dagrpo show` and MLflow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dagrpo.core.escape import one_line, visible
from dagrpo.core.types import BROKEN
from dagrpo.report.format import plural
from dagrpo.rollout.transcript import Call, Transcript, Utterance, transcript

LONGEST_TEXT = 1500  # characters of one text
LONGEST_FIRST_LINE = 72
EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, its texts cut and their control characters escaped. Each display escapes for its own markup."""

    row: Mapping[str, Any]  # of a table of attempts, as recorded
    read: Transcript

    @property
    def first_line(self) -> str:
        """The beginning of the graded completion, on one line."""
        return one_line(self.row["completion"], LONGEST_FIRST_LINE)

    @property
    def is_conversation(self) -> bool:
        """True if the attempt is more than one completion."""
        return self.read.turns > 1 or bool(self.read.calls)

    @property
    def is_broken(self) -> bool:
        """True if an error ended the attempt, for which the policy may not be responsible."""
        return self.read.stop_reason in BROKEN

    @property
    def verdict(self) -> str:
        """right, wrong, missing, unverifiable or excluded; "" if the attempt is not graded."""
        return EXCLUDED if self.read.stop_reason == EXCLUDED else self.read.verdict or ""

    @property
    def worth(self) -> str:
        """Reward and advantage in words; "" outside training."""
        reward = [] if self.read.reward is None else [f"reward {self.read.reward:.3f}"]
        advantage = [] if self.read.advantage is None else [f"advantage {self.read.advantage:+.3f}"]
        return ", ".join([*reward, *advantage])

    @property
    def size(self) -> str:
        """Numbers of turns, calls and tokens in words."""
        turns = [plural(self.read.turns, "turn"), plural(len(self.read.calls), "call")] if self.is_conversation else []
        return ", ".join([*turns, plural(self.read.tokens, "token")])

    @property
    def end(self) -> str:
        """Reason for the end of the attempt, in words."""
        return f"{self.read.stop_reason}{', truncated at the token limit' if self.read.cut else ''}"


def attempt_of(row: Mapping[str, Any], longest: int | None = LONGEST_TEXT) -> Attempt:
    """Return the attempt in a row of a rollout table or a scores table. `longest`: characters of each text; None: all."""
    return Attempt(row=row, read=_readable(transcript(row), longest))


def attempts_of(table: pa.Table, positions: Sequence[int], longest: int | None = LONGEST_TEXT) -> list[Attempt]:
    """Return the attempts at some positions of a table, in that order."""
    return [attempt_of(table.slice(position, 1).to_pylist()[0], longest) for position in positions]


def _readable(read: Transcript, longest: int | None) -> Transcript:
    def text(value: str) -> str:
        return visible(value, longest)

    def call(each: Call) -> Call:
        return replace(each, name=text(each.name), arguments=text(each.arguments), result=text(each.result))

    def utterance(each: Utterance) -> Utterance:
        calls = tuple(map(call, each.calls))
        return replace(each, text=text(each.text), thinking=text(each.thinking), calls=calls)

    return replace(
        read,
        prompt=text(read.prompt),
        question=text(read.question),
        ground_truth=text(read.ground_truth),
        extracted=None if read.extracted is None else text(read.extracted),
        fault=text(read.fault),
        utterances=tuple(map(utterance, read.utterances)),
    )
