"""Numbers of tokens and problems, and bytes as items."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from dagrpo.config.schema import Params
from dagrpo.core.section import Section
from dagrpo.data.task import get_task
from dagrpo.rollout.agents import OWN_LOOP
from dagrpo.utils.files import read_object

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
FLOAT32 = 4  # bytes
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A use of memory, and one line of the table."""

    name: str
    bytes: int
    how: str  # where the bytes come from, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak memory of one process, or one server."""

    what: str  # "training process", "rollout server"
    items: tuple[Item, ...]

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return sum(item.bytes for item in self.items)

    def of(self, name: str) -> int:
        """Return the bytes of the item with a name; 0 without one."""
        return sum(item.bytes for item in self.items if item.name == name)

    def only(self, names: Collection[str]) -> "Memory":
        """Return the memory of the items with these names."""
        return replace(self, items=tuple(item for item in self.items if item.name in names))


def memory(what: str, items: Iterable[Item]) -> Memory:
    """Return the memory of these items, without those of 0 bytes."""
    return Memory(what=what, items=tuple(item for item in items if item.bytes))


CHARACTERS_PER_TOKEN = 3  # of a tool's result; of a fresh model, which reads characters, 1
CARD = "card.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Upper limits of tokens: the lengths of the policy's answers are unknown."""

    prompt: int
    written: int  # by the policy, in all turns of a trajectory
    whole: int  # of a trajectory: prompt, turns and results

    @classmethod
    def of_training(cls, params: Params, positions: int) -> Self:
        """Return the lengths of rollouts, of a mixture the greatest. `positions`: the longest context of the model.

        Raises UserError for an unknown task.
        """
        own = [cls._of(params, task, params.rollout.max_new_tokens, positions) for task in learned_tasks(params)]
        longest = max(own, key=lambda each: each.whole)
        return cls(prompt=longest.prompt, written=max(each.written for each in own), whole=longest.whole)

    @classmethod
    def of_evaluation(cls, params: Params, task: str, positions: int) -> Self:
        """Return the lengths of attempts at a task's problems. Raises UserError for an unknown task."""
        return cls._of(params, task, params.evaluation.sampling.max_new_tokens, positions)

    @classmethod
    def _of(cls, params: Params, task: str, max_new_tokens: int, positions: int) -> Self:
        agent, prompt, record = params.rollout.agent, params.training.max_prompt_tokens, get_task(task)
        context = min(positions, params.runtime.engine.max_total_tokens or positions, agent.max_tokens or positions)
        turns, result = 1, 0
        if record.tools or record.interaction or agent.name != OWN_LOOP:
            per_token = 1 if params.model.source == "fresh" else CHARACTERS_PER_TOKEN
            turns, result = agent.max_turns, agent.max_result_characters // per_token
        whole = min(prompt + turns * max_new_tokens + (turns - 1) * result, context)
        return cls(prompt=prompt, written=min(turns * max_new_tokens, whole - 1), whole=whole)

    def after(self, prompt: int) -> int:
        """Return the tokens of a trajectory, turns and results at their longest, after a prompt of `prompt` tokens."""
        return min(prompt + max(self.whole - self.prompt, self.written), self.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Largest forward pass of a process: sequences of the greatest length."""

    sequences: int
    longest: int  # tokens of each
    written: int  # tokens of each that are trained on
    share: int  # sequences of a process in a mini-batch
    samples: int = 1  # sequences with the same prompt, which is computed once; 1: each has its own
    pictures: int = 0  # different ones

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return self.sequences * self.written

    @property
    def computed(self) -> int:
        """The number of computed tokens: those of a shared prompt count once, but for its last one, which is each sequence's own."""
        repeated = self.sequences - -(-self.sequences // self.samples)
        return self.sequences * self.longest - repeated * (self.longest - self.written - 1)

    @property
    def number(self) -> int:
        """Return the number of passes of a process over a mini-batch."""
        return -(-self.share // self.sequences)

    @classmethod
    def of_training(cls, params: Params, lengths: Lengths, *, share_prompts: bool) -> Self:
        """Return the micro-batch of GRPO."""
        training, runtime = params.training, params.runtime.training
        prompts = training.prompts_per_step // training.mini_batches
        share = max(prompts * training.samples_per_prompt // (runtime.processes * params.runtime.nodes), 1)
        samples = training.samples_per_prompt if share_prompts else 1
        # A shared prompt is there once, but for its last token, which is each sequence's own.
        once = lengths.whole - lengths.written - 1 if samples > 1 else 0
        sequences = min(runtime.micro_batch_size, share)
        if runtime.micro_batch_tokens is not None:
            # They come in groups of `samples`, each of which takes `once` more.
            own = lengths.whole - once
            groups, rest = divmod(runtime.micro_batch_tokens, samples * own + once)
            sequences = min(sequences, max(groups * samples + max((rest - once) // own, 0), 1))
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
        """Return the micro-batch of supervised fine-tuning, with answers as long as the policy's may be."""
        share = max(params.sft.batch_size // params.runtime.sft.processes, 1)
        sequences = min(params.runtime.sft.micro_batch_size, share)
        return cls(sequences=sequences, longest=lengths.whole, written=lengths.written, share=share, pictures=sequences)


def prompts_of(params: Params, task: str, split: str) -> int | None:
    """Return the number of problems of a split; None if it is known only once the stage prepare has run."""
    if (card := _card(params, task)) is not None:
        return int(card["counts"][split])
    generated: Any = getattr(params.data, task, None)
    count = getattr(generated, split, None) if isinstance(generated, Section) else None
    source = get_task(task).source
    if not isinstance(count, int) and source is not None:
        count = source.rows.get(split)
    if split == "validation":
        return count if isinstance(count, int) else params.data.held_out_validation
    most = params.data.max_train if split == "train" else params.data.max_test
    if not isinstance(count, int):
        return None
    return count if most is None else min(count, most)


def usual_prompt(params: Params, task: str, split: str) -> int:
    """Return the tokens of the median prompt, as counted by the stage prepare.

    Before that, the mean that the task declares; of a task that declares none, and for a fresh model, which reads characters, the most that
    are allowed.
    """
    card, most = _card(params, task), params.training.max_prompt_tokens
    lengths = card["prompt_tokens"]["splits"][split] if card is not None else None
    if lengths is not None:
        return int(lengths["median"])
    declared = None if params.model.source == "fresh" else get_task(task).prompt_tokens
    return most if declared is None else min(declared, most)


def learned_tasks(params: Params) -> Sequence[str]:
    """Return the tasks that training draws problems of."""
    return [*(params.experiment.shares or params.experiment.train_tasks)]


def usual_training_prompt(params: Params) -> int:
    """Return the tokens of the usual prompt to learn from: over the tasks of a mixture the mean, by their shares, else by their sizes.

    Sizes that are not known yet count as equal.
    """
    tasks = learned_tasks(params)
    sizes = [prompts_of(params, task, "train") or 0 for task in tasks]
    weights: list[float] = [*params.experiment.shares.values()] or [*(sizes if all(sizes) else [1] * len(tasks))]
    return round(fmean((usual_prompt(params, task, "train") for task in tasks), weights=weights))


def _card(params: Params, task: str) -> dict[str, Any] | None:
    """Return the card that the stage prepare has written; None without one."""
    path = Path("data", params.experiment.name, task, CARD)
    return read_object(path) if path.is_file() else None
