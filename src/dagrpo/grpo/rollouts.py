"""One step's rollouts: sampled, graded, and kept as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.grpo.batches import prompt_indices
from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.training import Training
from dagrpo.records import Completion, SamplingRequest, Score
from dagrpo.rendering import completion_text
from dagrpo.rewards.score import grade
from dagrpo.rollout.client import RolloutClient
from dagrpo.rollout.seeds import sampling_seed

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
        ("correct", pa.bool_()),
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


def requests_of(
    step: int, prompts: Sequence[Prompt], samples_per_prompt: int, rollout: Rollout, seed: int
) -> list[tuple[Prompt, SamplingRequest]]:
    """Each prompt `samples_per_prompt` times, every request with a seed of its own."""
    return [
        (
            prompt,
            SamplingRequest(
                input_ids=prompt.token_ids,
                seed=sampling_seed(seed, "rollout", step, position, sample),
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
                max_new_tokens=rollout.max_new_tokens,
            ),
        )
        for position, prompt in enumerate(prompts)  # not its index: a step that spans two epochs may draw it twice
        for sample in range(samples_per_prompt)
    ]


class RolloutSource:
    """Draws a step's prompts, has the engine complete them, and grades what comes back."""

    def __init__(
        self,
        *,
        client: RolloutClient,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        rollout: Rollout,
        reward: Reward,
        training: Training,
        seed: int,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._rollout = rollout
        self._reward = reward
        self._training = training
        self._seed = seed

    def collect(self, step: int) -> Rollouts:
        """The rollouts of the step numbered from 0."""
        indices = prompt_indices(self._seed, step, self._training.prompts_per_step, len(self._prompts))
        drawn = [self._prompts[index] for index in indices]
        pairs = requests_of(step, drawn, self._training.samples_per_prompt, self._rollout, self._seed)
        completions = self._client.generate([request for _, request in pairs], lockstep=self._rollout.deterministic)
        texts = [completion_text(self._tokenizer, completion.token_ids) for completion in completions]
        scores = [grade(text, prompt.ground_truth, self._reward) for text, (prompt, _) in zip(texts, pairs, strict=True)]
        return Rollouts(
            step=step,
            samples_per_prompt=self._training.samples_per_prompt,
            prompts=tuple(prompt for prompt, _ in pairs),
            requests=tuple(request for _, request in pairs),
            completions=tuple(completions),
            texts=tuple(texts),
            scores=tuple(scores),
            rewards=self._rewards(step, scores),
        )

    def _rewards(self, step: int, scores: Sequence[Score]) -> torch.Tensor:
        rewards = np.array([score.reward for score in scores], dtype=np.float32)
        if self._reward.permuted:
            rewards = np.random.default_rng([self._seed, step, 1]).permutation(rewards)
        return torch.from_numpy(rewards)


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
                "correct": score.correct,
                "reward": float(rollouts.rewards[position]),
                "advantage": float(advantages[position]),
                "sampling_seed": rollouts.requests[position].seed,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)
