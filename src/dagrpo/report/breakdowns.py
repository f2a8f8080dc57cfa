"""Breakdown of a task's scores by kind of problem and base difficulty.

Groups by difficulty are formed from the base policy's sampled completions and compared by the greedy ones. Compared by the
completions that formed them, they would show a gain of the hardest and a loss of the easiest problems where nothing has
changed (regression towards the mean).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagrpo.report.comparison import MetricComparison, compared
from dagrpo.report.inputs import VARIANTS, Inputs, Variant

Booleans = npt.NDArray[np.bool_]
SMALL = 30  # problems: in a smaller group, one or two decide
MOST_KINDS = 12  # with a separate row; the others share one more
OTHERS = "all others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of a task's problems, with both policies' results on it."""

    name: str
    problems: int
    greedy: MetricComparison
    moved: tuple[int, int, int] | None = (
        None  # problems of which the trained policy's samples are right in none, some, all
    )

    @property
    def is_small(self) -> bool:
        return self.problems < SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A task's groups; empty if nothing distinguishes its problems."""

    by_kind: Sequence[Group]
    by_base: Sequence[Group]
    samples: (
        int  # sampled completions of each problem, over all seeds, from which `by_base` is formed: copies count once
    )


def breakdown(inputs: Inputs, task: str) -> Breakdown:
    """Group one task's problems over all seeds."""
    problems = inputs.evaluations[task, "base", inputs.seeds[0]].outcomes.problems
    kinds = inputs.kinds.of(task, problems.tolist())
    base, trained = (_samples(inputs, task, variant) for variant in VARIANTS)
    return Breakdown(
        by_kind=[] if kinds is None else _by_kind(inputs, task, kinds),
        by_base=_by_base(inputs, task, base, trained) if base.shape[1] else [],
        samples=base.shape[1],
    )


def _by_kind(inputs: Inputs, task: str, kinds: Sequence[str]) -> list[Group]:
    """Group problems by kind, sorted by name; beyond MOST_KINDS the rarest share one group."""
    frequent = [kind for kind, _ in Counter(kinds).most_common(MOST_KINDS)]
    names = [kind if kind in frequent else OTHERS for kind in kinds]
    order = [*sorted(frequent), *([OTHERS] if OTHERS in names else [])]
    return [_group(inputs, task, name, np.array(names) == name) for name in order]


def _by_base(inputs: Inputs, task: str, base: Booleans, trained: Booleans) -> list[Group]:
    """Group problems by whether none, some or all of the base policy's samples are right; leave out empty groups.

    base, trained: as of `_samples`.
    """
    samples = base.shape[1]
    some = "1" if samples == 2 else f"1 to {samples - 1}"
    names = (f"0 of {samples}", f"{some} of {samples}", f"{samples} of {samples}")
    groups = []
    for name, members in zip(names, _none_some_all(base), strict=True):
        if members.any():
            none, some_of_them, every = (int((each & members).sum()) for each in _none_some_all(trained))
            groups.append(_group(inputs, task, name, members, (none, some_of_them, every)))
    return groups


def _none_some_all(right: Booleans) -> tuple[Booleans, ...]:
    """Return, for each problem, whether none, some, or all of its samples are right. right: [problems, samples]"""
    counts, samples = right.sum(axis=1), right.shape[1]
    return counts == 0, (counts > 0) & (counts < samples), counts == samples


def _group(inputs: Inputs, task: str, name: str, members: Booleans, moved: tuple[int, int, int] | None = None) -> Group:
    base, trained = (
        np.stack([inputs.evaluations[task, variant, seed].outcomes.greedy for seed in inputs.seeds])[:, members]
        for variant in VARIANTS
    )
    greedy = compared("greedy", base.astype(np.float64), trained.astype(np.float64), inputs.resampling(task))
    return Group(name=name, problems=int(members.sum()), greedy=greedy, moved=moved)


def _samples(inputs: Inputs, task: str, variant: Variant) -> Booleans:
    """Return whether each sampled completion is right, over the seeds whose samples are no copies. [problems, samples]"""
    seeds = inputs.seeds_sampled(task, variant)
    return np.concatenate([inputs.evaluations[task, variant, seed].outcomes.sampled for seed in seeds], axis=1)
