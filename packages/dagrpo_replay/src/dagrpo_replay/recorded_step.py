"""Update batch of a step, rebuilt from its rollout table.

Its tensors are those that the trainer had, bit for bit. Pictures, which the table lacks, come from the problems' split.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from dagrpo.core.errors import UserError
from dagrpo.core.types import EXCLUDED
from dagrpo.models.pictures import takes_pictures
from dagrpo.rollout.mixture import evenly_ordered
from dagrpo.rollout.prompts import read_split
from dagrpo.rollout.table import ALL, TRAINING_ROLLOUTS, read_table, without_discarded
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.rollouts import spread
from dagrpo.trainer.batches.sampling_mask import TokenSupport
from dagrpo.trainer.config.training import Training

PicturesOf = Callable[[int], tuple[bytes, ...]]  # by a problem's row in the split
SUPPORT = "sampling_support"


def pictures_of(initial: Path, splits: Sequence[Path]) -> PicturesOf:
    """Return a function from a problem's index to its pictures; the splits are read at its first call."""
    if not takes_pictures(initial):
        return lambda index: ()
    files = cache(lambda: [row.images for split in splits for row in read_split(split)])

    def find(index: int) -> tuple[bytes, ...]:
        if not 0 <= index < len(files()):
            raise UserError(
                f"{', '.join(map(str, splits))} has no row {index}, which the rollouts are of: restore what they were made from."
            )
        return files()[index]

    return find


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Contents of one step's rollout table."""

    step: int  # from 1
    batch: Batch  # with its advantages
    trainer_logprobs: (
        Tensor  # [trained tokens] float32, of the policy before the step; 3% of its distance from the engine's is lost
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """Trajectory from which the policy learns."""

    place: int  # among those of the step
    samples: list[tuple[list[int], list[bool]]]  # token ids and loss mask of each
    row: Mapping[str, Any]

    @property
    def advantages(self) -> list[float]:
        """Return the advantage of each token that the policy wrote."""
        of_tokens: list[float] = self.row["token_advantages"]
        return of_tokens or [self.row["advantage"]] * len(self.row["completion_ids"])


def read_step(path: Path, training: Training, pictures: PicturesOf = lambda index: ()) -> RecordedStep:
    """Return the update batch of a rollout table that the trainer has written, by the parameters `training`.

    `pictures`: the files that each problem shows, which the table lacks. Raises UserError if the file is no such table, or
    of other groups than the parameters.
    """
    table = without_discarded(read_table(path, TRAINING_ROLLOUTS))
    if set(table["kept"].to_pylist()) != {ALL}:
        raise UserError(
            f"{path} lacks the tokens or the exact logprobs of some attempts, which runtime.keep_rollouts has left out: name a step that "
            "was kept, or train again with runtime.keep_rollouts: all."
        )
    rows = table.drop_columns(SUPPORT).to_pylist()
    _require_groups(path, rows, training)
    order = evenly_ordered(table["task"].to_pylist()[:: training.samples_per_prompt])  # as the trainer has it
    if order != sorted(order):
        size = training.samples_per_prompt
        places = [group * size + sample for group in order for sample in range(size)]
        table, rows = table.take(places), [rows[place] for place in places]
    learned = [_learned(place, row) for place, row in enumerate(rows) if _is_learned(row)]
    if not learned:
        raise UserError(f"{path} has no trajectory to learn from: name the rollouts of another step.")
    counted = _counted(rows, training)
    samples = [(each, *sample) for each in learned for sample in each.samples]
    return RecordedStep(
        step=rows[0]["step"],
        batch=Batch(
            sequences=TokenSequences.of(
                [token_ids for _, token_ids, _ in samples],
                [mask for _, _, mask in samples],
                [pictures(each.row["problem_index"]) for each, _, _ in samples],
            ),
            trajectories=torch.tensor([each.place for each, _, _ in samples]),
            rollout_logprobs=_floats([each.row["rollout_logprobs"] for each in learned]),
            positive=torch.tensor([each.row["correct"] is True for each, _, _ in samples]),
            counted=torch.tensor([counted[each.place] for each, _, _ in samples]),
            support=_support(table, learned),
            teacher_logprobs=_floats([each.row["teacher_logprobs"] for each in learned])
            if learned[0].row["teacher_logprobs"]
            else None,
            advantages=_floats([each.advantages for each in learned]),
        ),
        trainer_logprobs=_floats([each.row["rollout_logprobs"] for each in learned])
        + _floats([each.row["logprob_differences"] for each in learned]),
    )


def _require_groups(path: Path, rows: Sequence[Mapping[str, Any]], training: Training) -> None:
    """Raise UserError if the number of attempts or prompts differs from the parameters."""
    size, prompts = training.samples_per_prompt, training.prompts_per_step
    groups = [{row["problem_index"] for row in rows[start : start + size]} for start in range(0, len(rows), size)]
    if len(rows) != size * prompts or any(len(group) > 1 for group in groups):
        raise UserError(
            f"{path} has {len(rows)} attempts at {len({row['problem_index'] for row in rows})} prompts, and a step has "
            f"training.samples_per_prompt ({size}) attempts, side by side, at each of training.prompts_per_step ({prompts}): set both to "
            "what the rollouts were sampled with."
        )


def _is_learned(row: Mapping[str, Any]) -> bool:
    return row["stop_reason"] != EXCLUDED and bool(row["completion_ids"])


def _counted(rows: Sequence[Mapping[str, Any]], training: Training) -> list[bool]:
    """Return whether the update includes each attempt's group. [attempts]"""
    rewards, learned = [row["reward"] for row in rows], [_is_learned(row) for row in rows]
    has_part = spread(rewards, learned, training.samples_per_prompt) | (not training.zero_variance_filter)
    return list(has_part.repeat(training.samples_per_prompt).tolist())


def _support(table: pa.Table, learned: Sequence[_Learned]) -> TokenSupport | None:
    """Return the sampling mask of each trained token; None if no mask is recorded: the whole vocabulary."""
    of_tokens = table.column(SUPPORT).take(pa.array([each.place for each in learned])).combine_chunks().flatten()
    if not len(of_tokens):
        return None
    lengths, ids = pc.list_value_length(of_tokens).to_numpy(), of_tokens.flatten().to_numpy()
    return TokenSupport(lengths=torch.tensor(lengths, dtype=torch.int64), token_ids=torch.tensor(ids))


def _learned(place: int, row: Mapping[str, Any]) -> _Learned:
    prompt, completion = row["prompt_ids"], row["completion_ids"]
    whole = {"token_ids": prompt + completion, "loss_mask": [False] * len(prompt) + [True] * len(completion)}
    samples = [(each["token_ids"], each["loss_mask"]) for each in row["samples"] or [whole] if any(each["loss_mask"])]
    return _Learned(place=place, samples=samples, row=row)


def _floats(values: list[list[float]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(values)), dtype=torch.float32)
