"""Prompt sampler: shuffled epochs without retired prompts.

It depends on the run's seed, on its position in the endless row of epochs, on the prompts that were cut off, which come first,
and on the retired ones: all but the seed are saved with a state, so that a resumed run samples the prompts of an uninterrupted
one. No position of the row is lost or used twice. dynamic_sampling.py decides how many prompts a step samples.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.types import Example
from dagrpo.rollout.prompts import PromptLimit, Prompts, epoch_order, problems_of, read_split
from dagrpo.rollout.trajectory import GradedTrajectory, Problem
from dagrpo.trainer.config.training import Training

PromptState = dict[str, Any]  # JSON-serialisable state of a prompt sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Problem that was sampled."""

    problem: Problem
    aborts: int = 0  # consecutive earlier times that its group was cut off


class PromptSampler:
    """Prompt sampler of a run: the order of its problems, and the position in it."""

    def __init__(
        self,
        problems: Sequence[Problem],
        training: Training,
        seed: int,
        *,
        finished: int = 0,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Start at the state `saved` after `finished` steps; None: as if each of them had sampled exactly its batch."""
        known = saved or {"position": finished * training.prompts_per_step, "retired": []}
        self._problems = problems
        self._training = training
        self._seed = seed
        self._position = int(known["position"])  # in the row: the number of its positions that were sampled or skipped
        self._retired = {int(index) for index in known["retired"]}  # rows of the split
        by_row = {problem.index: problem for problem in problems}
        cut_off = known.get("cut_off", [])  # older states have none
        self._cut_off = deque(Prompt(problem=by_row[int(row)], aborts=int(aborts)) for row, aborts in cut_off)
        self._epoch: tuple[int, list[int]] = (-1, [])

    @property
    def saved(self) -> PromptState:
        """Return the JSON-serialisable sampler state."""
        cut_off = [[prompt.problem.index, prompt.aborts] for prompt in self._cut_off]
        return {"position": self._position, "retired": sorted(self._retired), "cut_off": cut_off}

    @property
    def retired(self) -> int:
        """Return the number of retired problems."""
        return len(self._retired)

    def draw(self, count: int, step: int) -> list[Prompt]:
        """Return the next problems for `step` (0-based), first those that were put back. Raises UserError if all are retired."""
        if all(problem.index in self._retired for problem in self._problems):
            raise UserError(
                f"step {step + 1}: all {len(self._problems)} problems have reached training.retire_at "
                f"({self._training.retire_at}), so that none is left to draw: take the policy as it is with training.steps "
                f"{step}, or give harder problems or a higher training.retire_at and train again."
            )
        drawn: list[Prompt] = []
        while len(drawn) < count:
            prompt = self._cut_off.popleft() if self._cut_off else Prompt(problem=self._next())
            if prompt.problem.index not in self._retired:
                drawn.append(prompt)
        return drawn

    def put_back(self, drawn: Sequence[Prompt], finished: Sequence[int]) -> list[Prompt]:
        """Put back the prompts of `drawn` whose groups have not finished, to be sampled before all others. Returns them.

        `drawn` and the rows `finished` are in sampling order; if a row was sampled twice and has finished once, the first is the
        finished one. So the result follows from the rows alone.
        """
        left, rows = list[Prompt](), deque(finished)
        for prompt in drawn:
            if rows and rows[0] == prompt.problem.index:
                rows.popleft()
            else:
                left.append(prompt)
        self._cut_off.extendleft(replace(prompt, aborts=prompt.aborts + 1) for prompt in reversed(left))
        return left

    def retire(self, graded: Sequence[GradedTrajectory]) -> None:
        """Retire the problems of which a group has reached training.retire_at. `graded`: whole groups, one after the other."""
        rows = [each.trajectory.problem.index for each in graded]
        self.retire_rows(rows, [each.score.correct is True if each.trajectory.learned else None for each in graded])

    def retire_rows(self, rows: Sequence[int], right: Sequence[bool | None]) -> None:
        """Retire problems by the split row and the correctness of each attempt (None: left out), whole groups one after the other."""
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


def training_problems(path: Path, prompts: Prompts, training: Training) -> list[Problem]:
    """Return the train split's prompts within the range of pass rates.

    Raises UserError if a row is too long or lacks the pass rate that the order needs, or if too few are left.
    """
    examples = read_split(path)
    chosen = [(index, example) for index, example in enumerate(examples) if _in_range(example, training)]
    if training.order == "easy_first":
        _require_pass_rates(chosen, path)
    limit = PromptLimit(
        tokens=training.max_prompt_tokens,
        reason=f"training.max_prompt_tokens is {training.max_prompt_tokens}: raise it, "
        "or set data.max_prompt_tokens to leave such rows out",
    )
    problems = problems_of(chosen, prompts, limit, path)
    if len(problems) < training.prompts_per_step:
        raise UserError(
            f"{path} has {len(problems)} problems to train on ({len(examples)} rows, less those outside "
            f"training.min_pass_rate to max_pass_rate), fewer than training.prompts_per_step "
            f"({training.prompts_per_step}): lower the latter, or widen the range."
        )
    return problems


def _in_range(example: Example, training: Training) -> bool:
    return example.pass_rate is None or training.min_pass_rate <= example.pass_rate <= training.max_pass_rate


def _require_pass_rates(rows: Iterable[tuple[int, Example]], source: Path) -> None:
    for index, example in rows:
        if example.pass_rate is None:
            raise UserError(
                f"{source} row {index}: training.order is easy_first, but the problem has no pass rate: set "
                "difficulty.samples, give data.pass_rates, or set training.order to shuffled."
            )
