"""One step's rollouts, graded, and the table they are kept as."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch

from dagrpo.records import Completion, SamplingRequest, Score

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("prompt_index", pa.int64()),  # the row of train.parquet
        ("sample_index", pa.int32()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("trainer_logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("ground_truth", pa.string()),
        ("extracted", pa.string()),
        ("verdict", pa.string()),  # right, wrong, missing or unverifiable
        ("correct", pa.bool_()),  # null: unverifiable
        ("components", pa.map_(pa.string(), pa.float32())),  # of the reward, unweighted
        ("reward", pa.float32()),
        ("advantage", pa.float32()),
        ("sampling_seed", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of train.parquet, rendered by the policy's chat template."""

    index: int
    text: str
    token_ids: tuple[int, ...]  # [prompt]
    ground_truth: str
    verifier: str
    pass_rate: float | None = None  # None: not rated


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """A step's completions; the samples of one prompt are next to each other."""

    step: int  # from 0
    samples_per_prompt: int
    prompts: tuple[Prompt, ...]  # [completions], each prompt repeated for its samples
    requests: tuple[SamplingRequest, ...]  # [completions]
    completions: tuple[Completion, ...]  # [completions]
    texts: tuple[str, ...]  # [completions], decoded without special tokens
    scores: tuple[Score, ...]  # [completions]
    rewards: torch.Tensor  # [completions] float32, what the policy learns from


def to_table(rollouts: Rollouts, advantages: torch.Tensor, trainer_logprobs: Sequence[Sequence[float]]) -> pa.Table:
    """The table of the row contract. advantages: [completions]; trainer_logprobs: [completions][completion]."""
    rows = []
    for position, (prompt, completion, score) in enumerate(
        zip(rollouts.prompts, rollouts.completions, rollouts.scores, strict=True)
    ):
        rows.append(
            {
                "step": rollouts.step + 1,
                "prompt_index": prompt.index,
                "sample_index": position % rollouts.samples_per_prompt,
                "prompt": prompt.text,
                "completion": rollouts.texts[position],
                "prompt_ids": prompt.token_ids,
                "completion_ids": completion.token_ids,
                "rollout_logprobs": completion.logprobs,
                "trainer_logprobs": trainer_logprobs[position],
                "finish_reason": completion.finish_reason,
                "ground_truth": prompt.ground_truth,
                "extracted": score.extracted,
                "verdict": score.verdict,
                "correct": score.correct,
                "components": sorted(score.components.items()),
                "reward": float(rollouts.rewards[position]),
                "advantage": float(advantages[position]),
                "sampling_seed": rollouts.requests[position].seed,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)
