"""Sums and differences from a seeded generator, in GSM8K's `#### n` form.

The problems are those of reasoning-gym's chain_sum. Every level gives distinct problems only, and 12+34 counts as the
same problem as 34+12: neither both in train, nor one in train and the other in test. The worked answer adds tens and ones
apart (48+44: `80+12`, then `#### 92`): a character-level model of a million parameters learns that in a few hundred
steps, and the bare result not in a thousand.
"""

import hashlib
import itertools
import math
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.section import Count, Section, Seed
from dagrpo.core.types import Row
from dagrpo.data.source import SPLITS
from dagrpo.data.task import Task, TaskRows

if TYPE_CHECKING:
    from dagrpo.data.config import Data

Level = Literal["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"]


class Config(Section):
    """The generated arithmetic problems."""

    seed: Seed = Field(0, description="Seed of the problem generator.")
    train: Count = Field(4000, description="Number of training problems, over all levels.")
    test: Count = Field(500, description="Number of held-out problems; none of them is in train.")
    levels: Annotated[list[Level], Field(min_length=1, max_length=4)] = Field(
        ["sum_1_digit", "sum_2_digit", "difference_2_digit", "sum_3_terms"],
        description="Kinds of problem, in equal parts as far as a kind has that many distinct problems.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The shape of a level's problems: the number of terms, their digits, and the operator."""

    operator: str
    terms: int
    digits: int

    def distinct(self) -> int:
        """Return the number of distinct problems; a sum counts once for all orders of its terms."""
        numbers = 10 if self.digits == 1 else 9 * 10 ** (self.digits - 1)
        return math.comb(numbers + self.terms - 1, self.terms) if self.operator == "+" else numbers**self.terms


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSum:
    """One problem of a level: its terms in the order in which they are written, and its value."""

    level: Level
    terms: tuple[int, ...]
    result: str


KINDS: Mapping[Level, Kind] = {
    "sum_1_digit": Kind(operator="+", terms=2, digits=1),
    "sum_2_digit": Kind(operator="+", terms=2, digits=2),
    "difference_2_digit": Kind(operator="-", terms=2, digits=2),
    "sum_3_terms": Kind(operator="+", terms=3, digits=1),
}


def load(params: "Data") -> TaskRows:
    """Return the problems of `params.arithmetic`. Raises UserError if its levels have fewer distinct problems."""
    config = params.section(Config)
    counts = _problems_per_level(config)
    splits: dict[str, list[ChainSum]] = {split: [] for split in SPLITS}
    first = 0
    for level, count in counts.items():
        problems = list(itertools.islice(_distinct_problems(level, config.seed), count))
        test = _test_problems(config, first + count) - _test_problems(config, first)
        splits["test"] += problems[:test]
        splits["train"] += problems[test:]
        first += count
    for split in SPLITS:
        random.Random(f"{config.seed}/{split}").shuffle(splits[split])
    return TaskRows(
        splits={split: [_row(split, i, chain_sum) for i, chain_sum in enumerate(splits[split])] for split in SPLITS},
        source=f"reasoning-gym {version('reasoning-gym')} chain_sum",
        origin="generator",
        revision=None,
        files={},
        expected={"train": config.train, "test": config.test},
        read={split: len(splits[split]) for split in SPLITS},
        levels=tuple(counts),
    )


def _problems_per_level(config: Config) -> dict[Level, int]:
    """Divide the problems equally; larger levels share equally the problems that a small level lacks."""
    total = config.train + config.test
    levels = sorted(set(config.levels), key=lambda level: (KINDS[level].distinct(), level))
    available = sum(KINDS[level].distinct() for level in levels)
    if total > available:
        raise UserError(
            f"data.arithmetic asks for {total:,} problems (train and test), but its levels hold only {available:,} distinct "
            "ones: lower train or test, or add a level."
        )
    counts: dict[Level, int] = {}
    for position, level in enumerate(levels):
        part = (total - sum(counts.values())) // (len(levels) - position)
        counts[level] = min(KINDS[level].distinct(), part)
    return counts


def _test_problems(config: Config, first: int) -> int:
    """Return how many of the `first` problems go to the test split, so that each level gives its share."""
    return first * config.test // (config.train + config.test)


def _distinct_problems(level: Level, seed: int) -> Iterator[ChainSum]:
    """Return the problems of a level in random order, each once."""
    kind = KINDS[level]
    seen = set()
    for expression, result in _chain_sums(kind, f"{seed}/{level}"):
        terms = tuple(int(term) for term in expression.split(f" {kind.operator} ") if term.isdecimal())
        if len(terms) != kind.terms:
            continue  # chain_sum mixes + and -
        identity = tuple(sorted(terms)) if kind.operator == "+" else terms
        if identity not in seen:
            seen.add(identity)
            yield ChainSum(level=level, terms=terms, result=result)


def _chain_sums(kind: Kind, seed: str) -> Iterator[tuple[str, str]]:
    """Yield chain_sum's pairs (expression, result) without end; entry i depends on the seed and i alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # from a dependency of reasoning-gym, at every import
        # imported here: it takes a second or more, and only this task needs it
        from reasoning_gym.arithmetic.chain_sum import ChainSumConfig, ChainSumDataset
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6])  # far apart, so that no two streams overlap
    shape = {"min_terms": kind.terms, "max_terms": kind.terms, "min_digits": kind.digits, "max_digits": kind.digits}
    entries = ChainSumDataset(ChainSumConfig(seed=start, **shape))
    for index in itertools.count():
        entry = entries[index]
        yield entry["metadata"]["expression"], entry["answer"]


def _row(split: str, index: int, chain_sum: ChainSum) -> Row:
    question = f"{KINDS[chain_sum.level].operator.join(str(term) for term in chain_sum.terms)}=?"
    return Row(
        task="arithmetic",
        split=split,
        index=index,
        prompt=({"role": "user", "content": question},),
        question=question,
        answer=f"{_tens_and_ones(chain_sum)}\n#### {chain_sum.result}",
        ground_truth=chain_sum.result,
        data_source="arithmetic",
        ability=chain_sum.level,
    )


def _tens_and_ones(chain_sum: ChainSum) -> str:
    """Return the worked step: 48+44 -> 80+12, 52-38 -> 20-6, 3+4+5 -> 0+12."""
    sign = 1 if KINDS[chain_sum.level].operator == "+" else -1
    first, *others = chain_sum.terms
    tens = first // 10 + sign * sum(term // 10 for term in others)
    ones = first % 10 + sign * sum(term % 10 for term in others)
    return f"{10 * tens}{ones:+d}"


TASKS = (Task(name="arithmetic", load=load, verifier="gsm8k"),)
