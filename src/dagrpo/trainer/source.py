"""Where a step's rollouts come from: prompts drawn, completed by the engine, graded."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from dagrpo.params.reward import Reward
from dagrpo.params.rollout import Rollout
from dagrpo.params.training import Training
from dagrpo.records import Attempt, SamplingRequest, Score
from dagrpo.rendering import completion_text
from dagrpo.rewards.grading import Grader
from dagrpo.rewards.score import grade_all
from dagrpo.rollout.engine.client import RolloutClient
from dagrpo.rollout.seeds import sampling_seed
from dagrpo.trainer.packing import prompt_indices
from dagrpo.trainer.rollouts import Prompt, Rollouts


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
        grader: Grader,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        rollout: Rollout,
        reward: Reward,
        training: Training,
        seed: int,
    ) -> None:
        self._client = client
        self._grader = grader
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._rollout = rollout
        self._reward = reward
        self._training = training
        self._seed = seed
        self._pass_rates = _pass_rates(prompts) if training.order == "easy_first" else None

    def collect(self, step: int) -> Rollouts:
        """The rollouts of the step numbered from 0."""
        indices = prompt_indices(
            self._seed, step, self._training.prompts_per_step, len(self._prompts), self._pass_rates
        )
        drawn = [self._prompts[index] for index in indices]
        pairs = requests_of(step, drawn, self._training.samples_per_prompt, self._rollout, self._seed)
        completions = self._client.generate([request for _, request in pairs], lockstep=self._rollout.deterministic)
        texts = [completion_text(self._tokenizer, completion.token_ids) for completion in completions]
        attempts = [
            Attempt(
                text=text,
                ground_truth=prompt.ground_truth,
                verifier=prompt.verifier,
                tokens=len(completion.token_ids),
            )
            for text, completion, (prompt, _) in zip(texts, completions, pairs, strict=True)
        ]
        scores = grade_all(attempts, self._reward, self._rollout.max_new_tokens, self._grader)
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


def _pass_rates(prompts: Sequence[Prompt]) -> list[float]:
    rates = [prompt.pass_rate for prompt in prompts if prompt.pass_rate is not None]
    assert len(rates) == len(prompts), "checked when the prompts were read"
    return rates
