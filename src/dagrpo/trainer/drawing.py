"""Which prompts a run draws: the next ones of an endless row of shuffled epochs, less those that are retired.

A function of the run's seed, how far the run has come in that row, and who is retired: the last two are saved with a state,
so that a resumed run draws what an uninterrupted one does. Not here: how many a step draws (groups.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dagrpo.errors import UserError
from dagrpo.params.training import Training
from dagrpo.rollout.prompts import epoch_order
from dagrpo.rollout.trajectory import GradedTrajectory, Problem


class Drawing:
    """The order in which a run takes its problems, and its place in it."""

    def __init__(
        self,
        problems: Sequence[Problem],
        training: Training,
        seed: int,
        *,
        finished: int = 0,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`saved`: what the state after so many `finished` steps has of it; None: each of them drew its batch, no more."""
        known = saved or {"position": finished * training.prompts_per_step, "retired": []}
        self._problems = problems
        self._training = training
        self._seed = seed
        self._position = int(known["position"])  # in the row: so many places of it were drawn, or passed over
        self._retired = {int(index) for index in known["retired"]}  # rows of the split
        self._epoch: tuple[int, list[int]] = (-1, [])

    @property
    def saved(self) -> dict[str, Any]:
        """What a resumed run has to know, as JSON can say it."""
        return {"position": self._position, "retired": sorted(self._retired)}

    @property
    def retired(self) -> int:
        """How many problems are retired."""
        return len(self._retired)

    def draw(self, count: int, step: int) -> list[Problem]:
        """The next problems of the step numbered from 0. UserError: all are retired."""
        if all(problem.index in self._retired for problem in self._problems):
            raise UserError(
                f"step {step + 1}: all {len(self._problems)} problems have reached training.retire_at "
                f"({self._training.retire_at}), so that none is left to draw: take the policy as it is with training.steps "
                f"{step}, or give harder problems or a higher training.retire_at and train again."
            )
        drawn: list[Problem] = []
        while len(drawn) < count:
            problem = self._next()
            if problem.index not in self._retired:
                drawn.append(problem)
        return drawn

    def retire(self, graded: Sequence[GradedTrajectory]) -> None:
        """Draw no more the problems of which a group has reached training.retire_at. They are groups, one after the other."""
        rows = [each.trajectory.problem.index for each in graded]
        self.retire_rows(rows, [each.score.correct is True if each.trajectory.learned else None for each in graded])

    def retire_rows(self, rows: Sequence[int], right: Sequence[bool | None]) -> None:
        """The same, by the row of the split of each attempt, and whether it was right; None: it is left out."""
        rate, size = self._training.retire_at, self._training.samples_per_prompt
        if rate is None:
            return
        for start in range(0, len(rows), size):
            group = [each for each in right[start : start + size] if each is not None]
            if group and sum(group) / len(group) >= rate:
                self._retired.add(rows[start])

    def _next(self) -> Problem:
        epoch, place = divmod(self._position, len(self._problems))
        if self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_order(self._seed, epoch, len(self._problems), self._pass_rates()))
        self._position += 1
        return self._problems[self._epoch[1][place]]

    def _pass_rates(self) -> list[float] | None:
        if self._training.order != "easy_first":
            return None
        rates = [problem.example.pass_rate for problem in self._problems]
        known = [rate for rate in rates if rate is not None]
        assert len(known) == len(rates), "checked when the problems were read"
        return known
