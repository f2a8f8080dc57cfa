"""The card of prepared data: sources, filter findings, and row counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dagrpo.data.filters.contamination import Contamination
from dagrpo.data.filters.pass_rates import PassRates
from dagrpo.data.filters.prompt_length import PromptTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The content of card.json. The same data and parameters give the same card: no time, no path, no host.

    For every split: read = exact_copies + dropped + counts, but for problems held out, which move from train to test.
    """

    task: str
    source: str
    origin: str  # "hub", "mirror" or "generator"
    revision: str | None  # commit on the hub
    raw: Mapping[str, str]  # as Problems.files
    expected: Mapping[str, int]  # split -> problems of the whole source, copies not counted
    read: Mapping[str, int]  # split -> rows read
    exact_copies: Mapping[str, int]  # split -> rows that the source repeats as they are, not read again
    held_out: int  # train problems that became the test split of a source without one
    dropped: Mapping[str, int]  # "split: reason" -> problems; all but those beyond the limits are in dropped.parquet
    conflicting_questions: Mapping[str, int]  # split -> questions that had different ground truths
    contamination: Contamination
    prompt_tokens: PromptTokens  # of the problems written
    pass_rates: PassRates | None  # None: data.pass_rates names no file
    limits: Mapping[str, int | None]
    counts: Mapping[str, int]  # split -> problems written
    levels: Mapping[str, Mapping[str, int]]  # level -> split -> problems written; empty for a task without levels
    passages: int  # written, for a tool to search
    untested: bool  # the task was written from the description of the data set, and never read its real rows before

    def metrics(self) -> dict[str, float]:
        """Return the numbers to follow over runs, by the names they have in MLflow."""
        rows = {f"{split}_rows": float(count) for split, count in self.counts.items()}
        reasons: dict[str, float] = {}
        for key, count in self.dropped.items():
            name = f"dropped_{_name(key.partition(': ')[2])}"
            reasons[name] = reasons.get(name, 0.0) + count
        longest = {
            f"{split}_prompt_tokens_max": float(lengths.max)
            for split, lengths in self.prompt_tokens.splits.items()
            if lengths is not None
        }
        totals = {
            "dropped_rows": float(sum(self.dropped.values())),
            "exact_copies": float(sum(self.exact_copies.values())),
            "contaminated_train_problems": float(self.contamination.train_problems),
            "contaminated_train_problems_left": float(self.contamination.train_problems_left),
        }
        return rows | totals | reasons | longest

    def summary(self) -> list[tuple[str, str]]:
        """Return the card's figures as rows of a table, without zeros."""
        at = "" if self.revision is None else f" at {self.revision[:12]}"
        rows = [("source", f"{self.source} ({self.origin}{at})")]
        rows += [(f"{split} rows read", f"{count:,}") for split, count in self.read.items() if count]
        rows += [(f"{split}: exact copies", f"{count:,}") for split, count in self.exact_copies.items() if count]
        rows += [(reason, f"{count:,}") for reason, count in self.dropped.items() if count]
        rows += [("held out from train", f"{self.held_out:,}")] if self.held_out else []
        rows += [(f"{split} rows", f"{count:,}") for split, count in self.counts.items()]
        remaining = self.contamination.left_by_task
        rows += [("passages", f"{self.passages:,}")] if self.passages else []
        rows += [
            (f"train: shares words with {task}", f"{count:,} ({remaining[task]:,} left)")
            for task, count in self.contamination.by_task.items()
        ]
        if self.untested:
            rows.append(("untested", "the task was written from the data set's description: look at a few rows"))
        if self.prompt_tokens.tools_shown is False:
            rows.append(("tools", "left out by the chat template: the policy is not told of them"))
        return rows + [
            (f"{split}: tokens per prompt", f"{lengths.min:,} to {lengths.max:,}, median {lengths.median:,}")
            for split, lengths in self.prompt_tokens.splits.items()
            if lengths is not None
        ]


def _name(reason: str) -> str:
    """Return a reason as part of a metric's name."""
    return re.sub(r"\W+", "_", reason)
