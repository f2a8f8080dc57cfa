"""Prompt sampler: shuffled epochs of each task without retired prompts.

The prompts of a task depend on the run's seed, on the position in its endless row of epochs, on the prompts that were cut off, which
come first, and on the retired ones: all but the seed are saved with a state, so that a resumed run samples the prompts of an
uninterrupted one. No position of the row is lost or used twice. How many prompts of each task a batch has depends on its step alone
(rollout/mixture.py); dynamic_sampling.py decides how many a step samples for it.
"""

import itertools
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory, Prompt
from dagrpo.rollout.early_stop import Parts
from dagrpo.rollout.mixture import Mixture, spread_evenly
from dagrpo.rollout.prompts import epoch_order
from dagrpo.trainer.config.training import Training

PromptState = dict[str, Any]  # JSON-serialisable state of a prompt sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPrompt:
    """Prompt of the sampler, and how often it was cut off."""

    prompt: Prompt
    aborts: int = 0  # consecutive earlier times that its group was cut off
    parts: Parts = field(default_factory=dict)  # from which its attempts go on


class PromptSampler:
    """Prompt sampler of a run, of a single task or a mixture."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        training: Training,
        seed: int,
        *,
        shares: Mapping[str, float] | None = None,
        finished: int = 0,
        saved: Mapping[str, Any] | None = None,
        parts: Mapping[int, Parts] | None = None,
    ) -> None:
        """Start at the state `saved` after `finished` steps; None: as if each of them had sampled exactly its batch.

        `shares`: of the tasks, {} or None for their sizes. `parts`: those that were saved with that state.
        """
        tasks: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            tasks.setdefault(prompt.row.task, []).append(prompt)
        sizes = {task: len(own) for task, own in tasks.items()}
        self._training = training
        self._mixture = Mixture(sizes, shares or {}, training.prompts_per_step)
        before = self._mixture.before(finished)
        known: dict[str, Mapping[str, Any]] = {task: {"position": before[task], "retired": []} for task in tasks}
        if saved is not None:
            known = saved["tasks"] if len(tasks) > 1 else dict.fromkeys(tasks, saved)
        self._samplers: dict[str, _TaskSampler] = {}
        places = itertools.count()
        for task, own in tasks.items():
            # Older states have none that were cut off.
            own_parts = [(parts or {}).get(next(places), {}) for _ in known[task].get("cut_off", [])]
            of = task if len(tasks) > 1 else ""
            self._samplers[task] = _TaskSampler(own, of, training, seed, known[task], own_parts)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks in their order."""
        return self._mixture.tasks

    @property
    def saved(self) -> PromptState:
        """Return the JSON-serialisable sampler state."""
        states = {task: each.saved for task, each in self._samplers.items()}
        return {"tasks": states} if len(states) > 1 else next(iter(states.values()))

    @property
    def parts(self) -> dict[int, Parts]:
        """Return the parts of prompts that were cut off, by their places among those in `saved`, beside which they are saved."""
        parts = (sampled.parts for each in self._samplers.values() for sampled in each.cut_off)
        return {place: own for place, own in enumerate(parts) if own}

    @property
    def retired(self) -> int:
        """Return the number of retired prompts."""
        return sum(len(each.retired) for each in self._samplers.values())

    @property
    def epochs(self) -> dict[str, float]:
        """Return how often each task's prompts have been sampled or skipped."""
        return {task: each.epochs for task, each in self._samplers.items()}

    def due(self, step: int) -> dict[str, int]:
        """Return the number of groups of each task in the batch of `step` (0-based)."""
        return self._mixture.counts(step)

    def draw(self, counts: Mapping[str, int], step: int) -> list[SampledPrompt]:
        """Return the next prompts of each task for `step` (0-based), first those that were put back, the tasks spread evenly.

        Raises UserError if all of a task are retired.
        """
        drawn = {task: iter(self._samplers[task].draw(count, step)) for task, count in counts.items() if count}
        return [next(drawn[task]) for task in spread_evenly(counts)]

    def put_back(
        self, prompts: Sequence[SampledPrompt], finished: Sequence[int], parts: Mapping[int, Parts] | None = None
    ) -> None:
        """Put back those of `prompts` whose groups have not finished, to be sampled before all others of their tasks.

        `prompts` and the rows `finished` are in sampling order; if a row was sampled twice and has finished once, the first is the
        finished one. So the result follows from the rows alone. `parts`, by row, are kept with these; not those of a row that was
        sampled twice.
        """
        for task, sampler in self._samplers.items():
            own = [sampled for sampled in prompts if sampled.prompt.row.task == task]
            rows = {sampled.prompt.index for sampled in own}
            sampler.put_back(own, [row for row in finished if row in rows], parts or {})

    def retire(self, graded: Sequence[GradedTrajectory]) -> None:
        """Retire the prompts of which a group has reached training.retire_at. `graded`: whole groups, one after the other."""
        rate, size = self._training.retire_at, self._training.samples_per_prompt
        if rate is None:
            return
        for start in range(0, len(graded), size):
            right = [each.score.correct is True for each in graded[start : start + size] if each.trajectory.learned]
            if right and sum(right) / len(right) >= rate:
                self.retire_prompt(graded[start].trajectory.prompt)

    def retire_prompt(self, prompt: Prompt) -> None:
        """Sample a prompt no more."""
        self._samplers[prompt.row.task].retired.add(prompt.index)


class _TaskSampler:
    """Order of a task's prompts, and the position in it."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        task: str,
        training: Training,
        seed: int,
        known: Mapping[str, Any],
        parts: Sequence[Parts],
    ) -> None:
        """Start at a state. `task`: as `epoch_order` has it; `parts`: of its prompts that were cut off."""
        self._prompts = prompts
        self._task = task
        self._training = training
        self._seed = seed
        self._position = int(known["position"])  # in the row: the number of its positions that were sampled or skipped
        self.retired = {int(index) for index in known["retired"]}  # rows of the split
        by_row = {prompt.index: prompt for prompt in prompts}
        cut_off = zip(known.get("cut_off", []), parts, strict=True)
        self.cut_off = deque(
            SampledPrompt(prompt=by_row[int(row)], aborts=int(aborts), parts=own) for (row, aborts), own in cut_off
        )
        self._epoch: tuple[int, list[int]] = (-1, [])

    @property
    def saved(self) -> PromptState:
        """Return the JSON-serialisable state."""
        cut_off = [[sampled.prompt.index, sampled.aborts] for sampled in self.cut_off]
        return {"position": self._position, "retired": sorted(self.retired), "cut_off": cut_off}

    @property
    def epochs(self) -> float:
        """Return how often the prompts have been sampled or skipped."""
        return self._position / len(self._prompts)

    def draw(self, count: int, step: int) -> list[SampledPrompt]:
        """Return the next prompts, first those that were put back. Raises UserError if all are retired."""
        if all(prompt.index in self.retired for prompt in self._prompts):
            raise UserError(
                f"step {step + 1}: all {len(self._prompts)} problems of task {self._prompts[0].row.task} have reached "
                f"training.retire_at ({self._training.retire_at}), so that none is left to draw: take the policy as it is with "
                f"training.steps {step}, or give harder problems or a higher training.retire_at, or leave the task out of "
                "experiment.train, and train again."
            )
        prompts: list[SampledPrompt] = []
        while len(prompts) < count:
            sampled = self.cut_off.popleft() if self.cut_off else SampledPrompt(prompt=self._next())
            if sampled.prompt.index not in self.retired:
                prompts.append(sampled)
        return prompts

    def put_back(self, prompts: Sequence[SampledPrompt], finished: Sequence[int], parts: Mapping[int, Parts]) -> None:
        """Put back what has not finished, as PromptSampler does."""
        times = Counter(sampled.prompt.index for sampled in prompts)
        unfinished, rows = list[SampledPrompt](), deque(finished)
        for sampled in prompts:
            if rows and rows[0] == sampled.prompt.index:
                rows.popleft()
            else:
                row = sampled.prompt.index
                own = parts.get(row, {}) if times[row] == 1 else {}
                unfinished.append(replace(sampled, aborts=sampled.aborts + 1, parts=own))
        self.cut_off.extendleft(reversed(unfinished))

    def _next(self) -> Prompt:
        epoch, place = divmod(self._position, len(self._prompts))
        if self._epoch[0] != epoch:
            order = epoch_order(self._seed, epoch, len(self._prompts), self._pass_rates(), self._task)
            self._epoch = (epoch, order)
        self._position += 1
        return self._prompts[self._epoch[1][place]]

    def _pass_rates(self) -> list[float] | None:
        if self._training.order != "easy_first":
            return None
        rates = [prompt.row.pass_rate for prompt in self._prompts]
        known = [rate for rate in rates if rate is not None]
        assert len(known) == len(rates), "checked when the problems were read"
        return known
