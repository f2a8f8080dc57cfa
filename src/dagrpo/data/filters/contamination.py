"""Filter on contamination: train problems that share words with test problems.

Only the test and validation problems of experiment.evaluate count.
Two problems share words when a run of n words (13, as in Brown et al. 2020, arXiv:2005.14165, appendix C) occurs in
both, or when their whole questions are equal. A run does not count when more than half of it is a phrase that more than
ten train problems have, as the paper disregards runs found in more than ten documents: `where m and n are relatively
prime positive integers, find m + n` says nothing about a problem.

The same problem in other words, or in another language, is not found.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dagrpo.core.types import Row
from dagrpo.data.filters.sieve import Sieve
from dagrpo.data.filters.text import identity, normalised, runs, words
from dagrpo.utils.console import counted

COMMON = 10  # a phrase that more train problems have is a phrase of the trade
EXAMPLES = 5  # shown for each test split

Occurrences = Mapping[str, Mapping[str, int]]  # run of words -> task -> first test problem that has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Pair of a train problem and a test problem, with the words they share."""

    train_index: int
    test_task: str
    test_index: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Contamination as the card records it."""

    words: int  # length of a run
    train_problems: int  # that share words with any test split, before later gates and limits
    by_task: Mapping[str, int]  # evaluated task -> train problems that share words with its test split
    train_problems_left: int  # of them, those that are written
    left_by_task: Mapping[str, int]
    common_phrases_only: Mapping[str, int]  # and those that share only runs that do not count
    examples: Mapping[str, Sequence[Shared]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """The runs of words that train and test problems share."""

    words: int  # length of a run
    by_task: Mapping[str, Mapping[int, Shared]]  # evaluated task -> index of a train problem -> what it shares
    common_phrases_only: Mapping[str, int]  # as in Contamination

    def report(self, remaining: Sequence[Row]) -> Contamination:
        """Return the card's entry. `remaining`: the train problems that are written."""
        indices = {row.index for row in remaining}
        every = {index for shared in self.by_task.values() for index in shared}
        return Contamination(
            words=self.words,
            train_problems=len(every),
            by_task={task: len(shared) for task, shared in self.by_task.items()},
            train_problems_left=len(every & indices),
            left_by_task={task: len(shared.keys() & indices) for task, shared in self.by_task.items()},
            common_phrases_only=self.common_phrases_only,
            examples={
                task: [shared[index] for index in sorted(shared)[:EXAMPLES]] for task, shared in self.by_task.items()
            },
        )


def check_contamination(
    sieve: Sieve,
    tests: Mapping[str, Sequence[Row]],
    length: int,
    mode: Literal["report", "drop"],
    against: str = "test",
) -> Overlaps:
    """Find contaminated train problems; with mode `drop`, also drop them.

    tests: the test splits by task, or other ones with the name `against`. length: words of a run.
    """
    overlaps = _by_whole_question(sieve.splits["train"], tests)
    common: dict[str, set[int]] = defaultdict(set)
    _by_runs(sieve.splits["train"], _occurrences(tests, length), length, overlaps, common)
    details = {
        index: f"{task}, {against} row {shared.test_index}: {shared.words}"
        for task in reversed(list(tests))
        for index, shared in overlaps[task].items()
    }
    if mode == "drop" and (details or against == "test"):
        sieve.drop("train", f"shares words with a {against} problem", lambda row: details.get(row.index))
    return Overlaps(
        words=length,
        by_task={task: overlaps[task] for task in tests},
        common_phrases_only={task: len(common[task] - overlaps[task].keys()) for task in tests},
    )


def _by_whole_question(train: Sequence[Row], tests: Mapping[str, Sequence[Row]]) -> dict[str, dict[int, Shared]]:
    """Return, by task and index of a train problem, the test problem with the same question, however short."""
    overlaps: dict[str, dict[int, Shared]] = {task: {} for task in tests}
    for task, rows in tests.items():
        test_rows = {identity(row): row.index for row in reversed(rows)}
        for row in train:
            index = test_rows.get(identity(row))
            if index is not None:
                overlaps[task][row.index] = Shared(
                    train_index=row.index, test_task=task, test_index=index, words=normalised(row.question)
                )
    return overlaps


def _occurrences(tests: Mapping[str, Sequence[Row]], length: int) -> Occurrences:
    occurrences: dict[str, dict[str, int]] = defaultdict(dict)
    for task, rows in tests.items():
        for row in rows:
            for run in runs(words(normalised(row.question)), length):
                occurrences[run].setdefault(task, row.index)
    return occurrences


def _by_runs(
    train: Sequence[Row],
    occurrences: Occurrences,
    length: int,
    overlaps: Mapping[str, dict[int, Shared]],
    common: Mapping[str, set[int]],
) -> None:
    """Add train problems that share a run to `overlaps`, and those that share only a common phrase to `common`."""
    more_than_half = length // 2 + 1
    phrases = {phrase for run in occurrences for phrase in runs(run.split(), more_than_half)}
    matches: list[tuple[int, str]] = []  # index of a train problem, run of words that a test problem has too
    problems_with: Counter[str] = Counter()  # phrase -> train problems that have it
    for row in counted(train, "prepare: comparing train problems with test problems"):
        text = words(normalised(row.question))
        problems_with.update({phrase for phrase in runs(text, more_than_half) if phrase in phrases})
        matches += [(row.index, run) for run in runs(text, length) if run in occurrences]
    for train_index, run in matches:
        counts = all(problems_with[phrase] <= COMMON for phrase in runs(run.split(), more_than_half))
        for task, test_index in occurrences[run].items():
            if counts:
                shared = Shared(train_index=train_index, test_task=task, test_index=test_index, words=run)
                overlaps[task].setdefault(train_index, shared)
            else:
                common[task].add(train_index)
