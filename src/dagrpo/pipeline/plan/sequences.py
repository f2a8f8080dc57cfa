"""The greatest lengths of sequences, and the number computed at once."""

from dataclasses import dataclass
from typing import Self

from dagrpo.config.schema import Params
from dagrpo.data.task import get_task
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.rollout.config import Rollout

CHARACTERS_PER_TOKEN = 3  # of a tool's result; of a fresh model, which reads characters, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens at most: how long the policy's answers will be is not known."""

    prompt: int
    written: int  # by the policy, in all turns of a trajectory
    whole: int  # of a trajectory: prompt, turns and results

    @classmethod
    def of_training(cls, params: Params, positions: int) -> Self:
        """Return those of rollouts. `positions`: the longest context of the model. UserError: there is no such task."""
        return cls._of(params, params.experiment.train, params.rollout.max_new_tokens, positions)

    @classmethod
    def of_evaluation(cls, params: Params, task: str, positions: int) -> Self:
        """Return those of the attempts at a task's problems. UserError: as above."""
        return cls._of(params, task, params.evaluation.sampling.max_new_tokens, positions)

    @classmethod
    def _of(cls, params: Params, task: str, max_new_tokens: int, positions: int) -> Self:
        agent, prompt = params.rollout.agent, params.training.max_prompt_tokens
        context = min(positions, params.runtime.engine.max_total_tokens, agent.max_tokens or positions)
        turns, result = 1, 0
        if has_several_turns(params.rollout, task):
            per_token = 1 if params.model.source == "fresh" else CHARACTERS_PER_TOKEN
            turns, result = agent.max_turns, agent.max_result_characters // per_token
        whole = min(prompt + turns * max_new_tokens + (turns - 1) * result, context)
        return cls(prompt=prompt, written=min(turns * max_new_tokens, whole - 1), whole=whole)


def has_several_turns(rollout: Rollout, task: str) -> bool:
    """Return whether an attempt may have more than one turn. UserError: there is no such task."""
    record = get_task(task)
    return bool(record.tools or record.interaction) or rollout.agent.name != OWN_LOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The largest forward pass of a process: sequences that are all as long as allowed."""

    sequences: int
    longest: int  # tokens of each
    written: int  # tokens of each that are trained on
    share: int  # sequences of a process in a mini-batch
    samples: int = 1  # sequences with the same prompt, which is computed once; 1: each has its own
    pictures: int = 0  # different ones

    @property
    def trained(self) -> int:
        """Return its trained tokens."""
        return self.sequences * self.written

    @property
    def number(self) -> int:
        """Return the passes of a process over a mini-batch."""
        return -(-self.share // self.sequences)

    @classmethod
    def of_training(cls, params: Params, lengths: Lengths, *, share_prompts: bool) -> Self:
        """Return that of GRPO."""
        training, runtime = params.training, params.runtime.training
        prompts = training.prompts_per_step // training.mini_batches
        share = max(prompts * training.samples_per_prompt // runtime.processes, 1)
        samples = training.samples_per_prompt if share_prompts else 1
        once = (
            lengths.whole - lengths.written - 1 if samples > 1 else 0
        )  # the last token of a prompt is each sequence's own
        sequences = min(runtime.micro_batch_size, share)
        if runtime.micro_batch_tokens is not None:
            sequences = min(sequences, _within(runtime.micro_batch_tokens, samples, lengths.whole - once, once))
        return cls(
            sequences=sequences,
            longest=lengths.whole,
            written=lengths.written,
            share=share,
            samples=samples,
            pictures=min(sequences, prompts),
        )

    @classmethod
    def of_sft(cls, params: Params, lengths: Lengths) -> Self:
        """Return that of supervised fine-tuning, on answers that are as long as the policy's may be."""
        share = max(params.sft.batch_size // params.runtime.sft.processes, 1)
        sequences = min(params.runtime.sft.micro_batch_size, share)
        return cls(
            sequences=sequences,
            longest=lengths.whole,
            written=lengths.written,
            share=share,
            pictures=sequences,
        )


def _within(budget: int, samples: int, own: int, once: int) -> int:
    """Return how many sequences a forward pass of `budget` tokens has room for, at least one.

    They come in groups of `samples`. A sequence takes `own` tokens, and each group `once` more.
    """
    groups, rest = divmod(budget, samples * own + once)
    return max(groups * samples + max((rest - once) // own, 0), 1)
