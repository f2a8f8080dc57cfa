"""How long the sequences of an experiment may be, and how many of them a process computes with at the same time."""

from dataclasses import dataclass
from math import gcd
from typing import Self

from dagrpo.params.base import LARGEST_BATCH
from dagrpo.params.rollout import Rollout
from dagrpo.params.schema import Params
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.tasks.registry import get_task

CHARACTERS_PER_TOKEN = 3  # of a tool's result; of a fresh model, which reads characters, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """In tokens, at most: nothing here knows how long the policy's answers will be."""

    prompt: int
    written: int  # by the policy, in all turns of a trajectory
    whole: int  # of a trajectory: prompt, turns and results

    @classmethod
    def of_training(cls, params: Params, positions: int) -> Self:
        """Of rollouts. `positions`: the longest context of the model. UserError: there is no such task."""
        return cls._of(params, params.experiment.train, params.rollout.max_new_tokens, positions)

    @classmethod
    def of_evaluation(cls, params: Params, task: str, positions: int) -> Self:
        """Of the attempts at a task's problems. UserError: as above."""
        return cls._of(params, task, params.evaluation.sampling.max_new_tokens, positions)

    @classmethod
    def _of(cls, params: Params, task: str, max_new_tokens: int, positions: int) -> Self:
        agent, prompt = params.rollout.agent, params.training.max_prompt_tokens
        context = min(positions, params.runtime.engine.max_total_tokens, agent.max_tokens or positions)
        if not has_several_turns(params.rollout, task):
            whole = min(prompt + max_new_tokens, context)
            return cls(prompt=prompt, written=min(max_new_tokens, whole), whole=whole)
        per_token = 1 if params.model.source == "fresh" else CHARACTERS_PER_TOKEN
        turns, result = agent.max_turns, agent.max_result_characters // per_token
        whole = min(prompt + turns * max_new_tokens + (turns - 1) * result, context)
        return cls(prompt=prompt, written=min(turns * max_new_tokens, whole), whole=whole)


def has_several_turns(rollout: Rollout, task: str) -> bool:
    """Whether an attempt may have more than one turn. UserError: there is no such task."""
    known = get_task(task)
    return bool(known.tools or known.interaction) or rollout.agent.name != OWN_LOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The largest forward pass of a process."""

    sequences: int
    tokens: int  # of the sequences, padding included, but without prompts that are computed once
    trained: int  # tokens whose logits are computed
    longest: int
    pictures: int = 0  # different ones
    number: int  # of such passes in a mini-batch
    prompts: int = 0  # that are computed once; 0: each sequence is computed whole
    prompt: int = 0  # tokens of each that are computed once: all but its last, which the sequences begin with

    @classmethod
    def of_training(cls, params: Params, lengths: Lengths, *, share_prompts: bool) -> Self:
        """Of GRPO. Where tokens limit it, prompts may be so short that nearly all of them are trained on."""
        training, runtime = params.training, params.runtime.training
        prompts = training.prompts_per_step // training.mini_batches
        share = max(prompts * training.samples_per_prompt // runtime.processes, 1)
        most, budget = min(runtime.micro_batch_size, share), runtime.micro_batch_tokens
        samples = training.samples_per_prompt if share_prompts else 1
        once = _computed_once(lengths, samples)
        sequences = min(most, _within(budget, samples, lengths.whole - once, once))
        once = once if sequences > 1 else 0
        # A group may begin in one micro-batch and end in the next.
        groups = -(-(sequences + samples - gcd(sequences, samples)) // samples) if once else 0
        tokens = most * (lengths.whole - once)
        if budget is not None:
            tokens = min(tokens, max(budget - groups * once, lengths.whole - once))
        return cls(
            sequences=sequences,
            tokens=tokens,
            trained=max(min(most * lengths.written, tokens), sequences),
            longest=lengths.whole,
            pictures=min(sequences, prompts),
            number=-(-share // sequences),
            prompts=groups,
            prompt=once,
        )

    @classmethod
    def of_sft(cls, params: Params, lengths: Lengths) -> Self:
        """Of supervised fine-tuning, on answers that are as long as the policy's may be."""
        share = max(params.sft.batch_size // params.runtime.sft.processes, 1)
        sequences = min(params.runtime.sft.micro_batch_size, share)
        return cls(
            sequences=sequences,
            tokens=sequences * lengths.whole,
            trained=sequences * lengths.written,
            longest=lengths.whole,
            pictures=sequences,
            number=-(-share // sequences),
        )


def _computed_once(lengths: Lengths, samples: int) -> int:
    """Tokens of a prompt that its samples share: the last one is left to each of them (trainer/shared_prompts.py)."""
    return min(lengths.prompt, lengths.whole) - 1 if samples > 1 else 0


def _within(budget: int | None, samples: int, own: int, once: int) -> int:
    """How many sequences a forward pass of `budget` tokens has room for: at least one; any number without a budget.

    They come in groups of `samples`. A sequence takes `own` tokens, and each group `once` more.
    """
    if budget is None:
        return LARGEST_BATCH
    groups, rest = divmod(budget, samples * own + once)
    return max(groups * samples + max((rest - once) // own, 0), 1)
