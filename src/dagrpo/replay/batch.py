"""A step's update batch, read back from the table of its rollouts: the same tensors, bit for bit, that the trainer had."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dagrpo.errors import UserError
from dagrpo.rollout.table import TRAINING_ROLLOUTS, read_table
from dagrpo.trainer.packing import RolloutBatch, TokenSequences

LEFT_OUT = "excluded"  # the reason to stop of a trajectory from which nothing is learned


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """What a rollout table says of one step."""

    step: int  # from 1
    batch: RolloutBatch  # with its advantages
    trainer_logprobs: Tensor  # [trained tokens] float32, of the policy that sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """A trajectory from which the policy learns."""

    place: int  # among those of the step
    samples: list[tuple[list[int], list[bool]]]  # token ids and loss mask of each
    row: Mapping[str, Any]

    @property
    def advantages(self) -> list[float]:
        """Of each token that the policy wrote."""
        of_tokens: list[float] = self.row["token_advantages"]
        return of_tokens or [self.row["advantage"]] * len(self.row["completion_ids"])


def read_step(path: Path) -> RecordedStep:
    """The update batch of a rollout table that the trainer has written. UserError: it is none, or does not fit together."""
    table = read_table(path, TRAINING_ROLLOUTS)
    rows = table.to_pylist()
    learned = [_learned(path, place, row) for place, row in enumerate(rows) if _is_learned(row)]
    if not learned:
        raise UserError(f"{path} has no trajectory to learn from: name the rollouts of another step.")
    samples = [(each, *sample) for each in learned for sample in each.samples]
    return RecordedStep(
        step=rows[0]["step"],
        batch=RolloutBatch(
            sequences=TokenSequences.of([token_ids for _, token_ids, _ in samples], [mask for _, _, mask in samples]),
            trajectories=torch.tensor([each.place for each, _, _ in samples]),
            rollout_logprobs=_floats([each.row["rollout_logprobs"] for each in learned]),
            positive=torch.tensor([each.row["correct"] is True for each, _, _ in samples]),
            advantages=_floats([each.advantages for each in learned]),
        ),
        trainer_logprobs=_floats([each.row["trainer_logprobs"] for each in learned]),
    )


def _is_learned(row: Mapping[str, Any]) -> bool:
    return row["stop_reason"] != LEFT_OUT and bool(row["completion_ids"])


def _learned(path: Path, place: int, row: Mapping[str, Any]) -> _Learned:
    prompt, completion = row["prompt_ids"], row["completion_ids"]
    whole = {"token_ids": prompt + completion, "loss_mask": [False] * len(prompt) + [True] * len(completion)}
    samples = [(each["token_ids"], each["loss_mask"]) for each in row["samples"] or [whole] if any(each["loss_mask"])]
    learned = _Learned(place=place, samples=samples, row=row)
    _require_aligned(path, learned)
    return learned


def _require_aligned(path: Path, learned: _Learned) -> None:
    """UserError names the column that does not have one value for each token that the policy wrote."""
    row, tokens = learned.row, len(learned.row["completion_ids"])
    lengths = {
        "samples": sum(sum(mask) for _, mask in learned.samples),
        "rollout_logprobs": len(row["rollout_logprobs"]),
        "trainer_logprobs": len(row["trainer_logprobs"]),
        "token_advantages": len(learned.advantages),
    }
    wrong = [name for name, length in lengths.items() if length != tokens]
    unaligned = any(len(token_ids) != len(mask) or mask[0] for token_ids, mask in learned.samples)
    if wrong or unaligned or None in learned.advantages:
        name = wrong[0] if wrong else "samples" if unaligned else "advantage"
        raise UserError(
            f"{path}: row {learned.place}: `{name}` does not fit the {tokens} tokens of `completion_ids`: restore the file."
        )


def _floats(values: list[list[float]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(values)), dtype=torch.float32)
