"""The agent loop: how one attempt at one problem is made, completion by completion.

Today's loop has one turn: the policy completes its prompt, and that is its answer. Tools and users will add turns here.
Which seed a turn gets, and in which order the completions of many attempts are asked for, is decided by `collect`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from dagrpo.records import Completion
from dagrpo.rendering import completion_text
from dagrpo.rollout.trajectory import Problem, TokenSample, Trajectory

Complete = Callable[[tuple[int, ...]], Awaitable[Completion]]
"""Has the policy continue some tokens, [prompt]. An agent calls it once per turn, one turn after the other."""


class Agent(Protocol):
    """What makes an attempt: completions, and whatever comes between them."""

    async def __call__(self, problem: Problem, sample_index: int, seed: int, complete: Complete) -> Trajectory: ...


class SingleTurn:
    """The agent that answers at once, without tools and without anybody who asks back."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    async def __call__(self, problem: Problem, sample_index: int, seed: int, complete: Complete) -> Trajectory:
        """One completion of the problem's prompt. `seed` is that of the first completion."""
        completion = await complete(problem.token_ids)
        return Trajectory(
            problem=problem,
            sample_index=sample_index,
            sampling_seed=seed,
            samples=(_sample(problem.token_ids, completion),),
            text=completion_text(self._tokenizer, completion.token_ids),
            finish_reason=completion.finish_reason,
        )


def _sample(prompt: tuple[int, ...], completion: Completion) -> TokenSample:
    written = len(completion.token_ids)
    return TokenSample(
        token_ids=(*prompt, *completion.token_ids),
        loss_mask=(False,) * len(prompt) + (True,) * written,
        logprobs=(0.0,) * len(prompt) + completion.logprobs,
        weight_version=completion.weight_version,
    )
