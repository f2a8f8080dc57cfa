"""A prompt that several sequences begin with is computed once: the same loss and gradient, and less work."""

from pathlib import Path

import pytest
import torch
from tests.trainer import runs
from tests.trainer.in_double import SIZES
from tests.trainer.updates import TRAINING, batch_of, update_of
from transformers import MambaConfig, MambaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dagrpo.core.errors import UserError
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.batches.micro_batches import Budget, MicroBatchSplitter, usual_sharing
from dagrpo.trainer.config.runtime import Layout, TrainingRuntime
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.prepare import resolve_budget
from dagrpo.utils.distributed import World, single_process

CPU = torch.device("cpu")


def _sequences(pairs: list[tuple[list[int], list[int]]]) -> TokenSequences:
    """From prompts and completions."""
    return TokenSequences.of(
        [[*prompt, *completion] for prompt, completion in pairs],
        [[False] * len(prompt) + [True] * len(completion) for prompt, completion in pairs],
    )


def test_a_prompt_is_computed_once_and_not_once_per_sample() -> None:
    read: list[int] = []
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    model.model.layers[0].register_forward_pre_hook(lambda layer, inputs: read.append(inputs[0].shape[:2].numel()))
    sequences = _sequences([([*range(1, 31)], [8, 9]) for _ in range(8)])
    policy = Policy(model)
    policy.take_packed()
    for share in (False, True):
        token_logprobs(policy, sequences.packed(range(8), CPU, share_prompts=share), 1.0)
    assert read == [8 * 32, 29 + 8 * 3]


def test_micro_batches_keep_groups_together_and_count_a_prompt_once() -> None:
    """Prompts of 9, 5 and 9 tokens, without their last ones 8, 4 and 8. Within 25 tokens:

    8 of the first and four times 1 + 3 are 24. 8 of the third and four times 1 + 1 are 16. 4 of the second and 1 + 1 beside them are
    22.
    """
    pairs = [([*range(1, 10)], [2, 2, 2])] * 4 + [([1] * 5, [3])] + [([*range(2, 11)], [4])] * 4
    sequences, spans = _sequences(pairs), [slice(number, number + 1) for number in range(9)]
    splitter = MicroBatchSplitter(sequences, Budget(sequences=99, tokens=25, share_prompts=True, layout="packed"))
    arranged = splitter.arrange(spans, 1)
    assert splitter.micro_batches(arranged, 0, 1) == [(0, 1, 2, 3), (5, 6, 7, 8, 4)]


def test_a_model_that_cannot_be_packed_shares_no_prompts() -> None:
    policy = Policy(MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)))
    with pytest.raises(UserError, match=r"set runtime\.training\.share_prompts to false"):
        resolve_budget(TrainingRuntime(share_prompts=True), policy, single_process())


@pytest.mark.parametrize(
    ("layout", "asked", "share"),
    [(None, None, True), ("packed", None, True), ("padded", None, False), (None, False, False)],
)
def test_who_does_not_say_shares_prompts_in_packed_rows(layout: Layout | None, asked: bool | None, share: bool) -> None:
    policy = Policy(Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval())
    budget = resolve_budget(TrainingRuntime(layout=layout, share_prompts=asked), policy, single_process())
    assert budget.layout == ("padded" if layout == "padded" else "packed")
    assert budget.share_prompts == share


def test_prompts_are_not_shared_on_a_gpu_unless_it_is_asked_for() -> None:
    assert not usual_sharing("packed", on_gpu=True)
    assert usual_sharing("packed", on_gpu=False)


GROUP = TRAINING.samples_per_prompt


def _grouped_rollouts(step: int) -> Batch:
    """24 trajectories with prompts of two to seven tokens, each of four trajectories, and completions of one to seven."""
    drawn = torch.Generator().manual_seed(step)
    prompts = [torch.randint(3, 60, (2 + group,), generator=drawn).tolist() for group in range(24 // GROUP)]
    completions = [torch.randint(3, 60, (1 + (row * 5) % 7,), generator=drawn).tolist() for row in range(24)]
    return batch_of([prompts[row // GROUP] for row in range(24)], completions, torch.linspace(-1.5, 1.5, 24).roll(step))


def _update_twice(world: World, initial: Path, share_prompts: bool) -> list[dict[str, float]]:
    budget = Budget(sequences=5, share_prompts=share_prompts, layout="packed")
    update = update_of(load_policy(initial, world), world, budget, initial)
    steps = [update.run(step, _grouped_rollouts(step)) for step in range(2)]
    return [{"loss": stats.loss, "kl": stats.kl, "norm": stats.grad_norm} for stats in steps]


@pytest.mark.nightly
def test_two_processes_see_what_one_sees(inputs: tuple[Path, Path]) -> None:
    together, _ = runs.launch(2, _update_twice, inputs[0], True)
    for share in (False, True):
        for one, other in zip(_update_twice(single_process(), inputs[0], share), together, strict=True):
            assert other == pytest.approx(one, rel=2e-3, abs=2e-4)
