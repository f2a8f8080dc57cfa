"""Mixture of tasks: the prompts of each in a batch."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction


class Mixture:
    """Mixture of tasks in batches of one size, a function of the step alone.

    The batches of a run are consecutive parts of one endless sequence of tasks (`in_proportion`). So a batch has exactly its share of
    each task where that is a whole number, and after every step no task is a whole prompt ahead of its share, or behind.
    """

    def __init__(self, sizes: Mapping[str, int], shares: Mapping[str, float], batch: int) -> None:
        """Mix the tasks of `sizes` by `shares`, to a millionth; {}: by their sizes. `batch`: prompts of a step."""
        exact = [Fraction(shares[task]).limit_denominator() if shares else Fraction(n) for task, n in sizes.items()]
        scale = math.lcm(*(each.denominator for each in exact))
        whole = [int(each * scale) for each in exact]
        weights = [each // math.gcd(*whole) for each in whole]
        self.tasks = tuple(sizes)
        self.shares = tuple(Fraction(weight, sum(weights)) for weight in weights)
        self._batch = batch
        self._period = sum(weights) // math.gcd(sum(weights), batch)  # steps after which the sequence begins again
        self._in_period = [weight * self._period * batch // sum(weights) for weight in weights]
        self._sequence = in_proportion(weights)
        self._before = [(0,) * len(weights)]  # each step of the first period, as far as it was asked for

    def before(self, step: int) -> dict[str, int]:
        """Return how many prompts of each task the batches before `step` (0-based) have."""
        periods, rest = divmod(step, self._period)
        while len(self._before) <= rest:
            drawn = Counter(itertools.islice(self._sequence, self._batch))
            self._before.append(tuple(count + drawn[place] for place, count in enumerate(self._before[-1])))
        counts = zip(self.tasks, self._in_period, self._before[rest], strict=True)
        return {task: periods * in_period + count for task, in_period, count in counts}

    def counts(self, step: int) -> dict[str, int]:
        """Return how many prompts of each task the batch of `step` (0-based) has."""
        before, after = self.before(step), self.before(step + 1)
        return {task: after[task] - before[task] for task in self.tasks}


def spread_evenly(counts: Mapping[str, int]) -> list[str]:
    """Return each task as often as it counts, so that every part of the list has the same mixture, as far as it divides.

    Of tasks that are due alike the first by name comes first, whatever their order in `counts`.
    """
    tasks = sorted(counts)
    order = itertools.islice(in_proportion([counts[task] for task in tasks]), sum(counts.values()))
    return [tasks[place] for place in order]


def evenly_ordered(tasks: Sequence[str]) -> list[int]:
    """Return the places of `tasks` in the order in which they are spread evenly, and those of each task rise."""
    places = {task: iter([at for at, each in enumerate(tasks) if each == task]) for task in {*tasks}}
    return [next(places[task]) for task in spread_evenly(Counter(tasks))]


def in_proportion(weights: Sequence[int]) -> Iterator[int]:
    """Yield places of `weights`, which has a positive one, without end.

    Each is among the first n, for every n, as often as its share of n says, give or take less than once: of those that are behind
    their share, the next is the one that would be a whole time behind first. (Baruah et al. 1996, Proportionate progress, on one
    processor; Tijdeman 1980, The chairman assignment problem.)
    """
    total, times = sum(weights), [0] * len(weights)
    for number in itertools.count(1):
        behind = [place for place, weight in enumerate(weights) if weight * number > total * times[place]]
        chosen = min(behind, key=lambda place: -(-(times[place] + 1) * total // weights[place]))
        times[chosen] += 1
        yield chosen
