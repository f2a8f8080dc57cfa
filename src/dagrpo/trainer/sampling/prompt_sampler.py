"""Prompt sampler: shuffled epochs without retired prompts.

It depends on the run's seed, on its position in the endless row of epochs, on the prompts that were cut off, which come first,
and on the retired ones: all but the seed are saved with a state, so that a resumed run samples the prompts of an uninterrupted
one. No position of the row is lost or used twice. dynamic_sampling.py decides how many prompts a step samples.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory, Prompt
from dagrpo.core.types import Row
from dagrpo.rollout.early_stop import Parts
from dagrpo.rollout.prompts import PromptLimit, PromptRenderer, epoch_order, prompts_of, read_split
from dagrpo.trainer.config.training import Training

PromptState = dict[str, Any]  # JSON-serialisable state of a prompt sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPrompt:
    """Prompt of the sampler, and how often it was cut off."""

    prompt: Prompt
    aborts: int = 0  # consecutive earlier times that its group was cut off
    parts: Parts = field(default_factory=dict)  # from which its attempts go on


class PromptSampler:
    """Prompt sampler of a run: the order of its prompts, and the position in it."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        training: Training,
        seed: int,
        *,
        finished: int = 0,
        saved: Mapping[str, Any] | None = None,
        parts: Mapping[int, Parts] | None = None,
    ) -> None:
        """Start at the state `saved` after `finished` steps; None: as if each of them had sampled exactly its batch.

        `parts`: those that were saved with that state.
        """
        known = saved or {"position": finished * training.prompts_per_step, "retired": []}
        self._prompts = prompts
        self._training = training
        self._seed = seed
        self._position = int(known["position"])  # in the row: the number of its positions that were sampled or skipped
        self._retired = {int(index) for index in known["retired"]}  # rows of the split
        by_row = {prompt.index: prompt for prompt in prompts}
        cut_off = known.get("cut_off", [])  # older states have none
        self._cut_off = deque(
            SampledPrompt(prompt=by_row[int(row)], aborts=int(aborts), parts=(parts or {}).get(place, {}))
            for place, (row, aborts) in enumerate(cut_off)
        )
        self._epoch: tuple[int, list[int]] = (-1, [])

    @property
    def saved(self) -> PromptState:
        """Return the JSON-serialisable sampler state."""
        cut_off = [[sampled.prompt.index, sampled.aborts] for sampled in self._cut_off]
        return {"position": self._position, "retired": sorted(self._retired), "cut_off": cut_off}

    @property
    def parts(self) -> dict[int, Parts]:
        """Return the parts of prompts that were cut off, by their places in the "cut_off" of `saved`, beside which they are saved."""
        return {place: sampled.parts for place, sampled in enumerate(self._cut_off) if sampled.parts}

    @property
    def retired(self) -> int:
        """Return the number of retired prompts."""
        return len(self._retired)

    def draw(self, count: int, step: int) -> list[SampledPrompt]:
        """Return the next prompts for `step` (0-based), first those that were put back. Raises UserError if all are retired."""
        if all(prompt.index in self._retired for prompt in self._prompts):
            raise UserError(
                f"step {step + 1}: all {len(self._prompts)} problems have reached training.retire_at "
                f"({self._training.retire_at}), so that none is left to draw: take the policy as it is with training.steps "
                f"{step}, or give harder problems or a higher training.retire_at and train again."
            )
        prompts: list[SampledPrompt] = []
        while len(prompts) < count:
            sampled = self._cut_off.popleft() if self._cut_off else SampledPrompt(prompt=self._next())
            if sampled.prompt.index not in self._retired:
                prompts.append(sampled)
        return prompts

    def put_back(
        self, prompts: Sequence[SampledPrompt], finished: Sequence[int], parts: Mapping[int, Parts] | None = None
    ) -> list[SampledPrompt]:
        """Put back those of `prompts` whose groups have not finished, to be sampled before all others. Returns them.

        `prompts` and the rows `finished` are in sampling order; if a row was sampled twice and has finished once, the first is the
        finished one. So the result follows from the rows alone. `parts`, by row, are kept with these; not those of a row that was
        sampled twice.
        """
        times = Counter(sampled.prompt.index for sampled in prompts)
        known = {row: own for row, own in (parts or {}).items() if times[row] == 1}
        unfinished, rows = list[SampledPrompt](), deque(finished)
        for sampled in prompts:
            if rows and rows[0] == sampled.prompt.index:
                rows.popleft()
            else:
                unfinished.append(sampled)
        self._cut_off.extendleft(
            replace(sampled, aborts=sampled.aborts + 1, parts=known.get(sampled.prompt.index, {}))
            for sampled in reversed(unfinished)
        )
        return unfinished

    def retire(self, graded: Sequence[GradedTrajectory]) -> None:
        """Retire the prompts of which a group has reached training.retire_at. `graded`: whole groups, one after the other."""
        rate, size = self._training.retire_at, self._training.samples_per_prompt
        if rate is None:
            return
        for start in range(0, len(graded), size):
            right = [each.score.correct is True for each in graded[start : start + size] if each.trajectory.learned]
            if right and sum(right) / len(right) >= rate:
                self._retired.add(graded[start].trajectory.prompt.index)

    def _next(self) -> Prompt:
        epoch, place = divmod(self._position, len(self._prompts))
        if self._epoch[0] != epoch:
            self._epoch = (epoch, epoch_order(self._seed, epoch, len(self._prompts), self._pass_rates()))
        self._position += 1
        return self._prompts[self._epoch[1][place]]

    def _pass_rates(self) -> list[float] | None:
        if self._training.order != "easy_first":
            return None
        rates = [prompt.row.pass_rate for prompt in self._prompts]
        known = [rate for rate in rates if rate is not None]
        assert len(known) == len(rates), "checked when the problems were read"
        return known


def read_training_prompts(path: Path, renderer: PromptRenderer, training: Training) -> list[Prompt]:
    """Return the train split's prompts within the range of pass rates.

    Raises UserError if a row is too long or lacks the pass rate that the order needs, or if too few are left.
    """
    rows = read_split(path)
    low, high = training.min_pass_rate, training.max_pass_rate
    chosen = [(at, row) for at, row in enumerate(rows) if row.pass_rate is None or low <= row.pass_rate <= high]
    if training.order == "easy_first":
        _require_pass_rates(chosen, path)
    limit = PromptLimit(
        tokens=training.max_prompt_tokens,
        reason=f"training.max_prompt_tokens is {training.max_prompt_tokens}: raise it, "
        "or set data.max_prompt_tokens to leave such rows out",
    )
    prompts = prompts_of(chosen, renderer, limit, path)
    if len(prompts) < training.prompts_per_step:
        raise UserError(
            f"{path} has {len(prompts)} problems to train on ({len(rows)} rows, less those outside "
            f"training.min_pass_rate to max_pass_rate), fewer than training.prompts_per_step "
            f"({training.prompts_per_step}): lower the latter, or widen the range."
        )
    return prompts


def _require_pass_rates(rows: Iterable[tuple[int, Row]], source: Path) -> None:
    for index, row in rows:
        if row.pass_rate is None:
            raise UserError(
                f"{source} row {index}: training.order is easy_first, but the problem has no pass rate: set "
                "difficulty.samples, give data.pass_rates, or set training.order to shuffled."
            )
