"""Attempts that an earlier step began: whose tokens they have, what their loss is, and how a state keeps them."""

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.algorithms.batches import ratios
from tests.rollout.problems import problem
from tests.trainer.attempts import attempt, scored, written

from dagrpo.algorithms.corrections import CORRECTIONS, weights_of
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GradedTrajectory
from dagrpo.core.types import ABORTED, Completion
from dagrpo.rollout.early_stop import Part, followed, kept
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE, require_the_policys_rollouts
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.prefetch import PendingBatches
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler

PART = Completion(
    token_ids=(5, 6, 7), logprobs=(-0.5, -1.5, -9.0), finish_reason=ABORTED, weight_version="step_0", cached_tokens=2
)
REST = Completion(
    token_ids=(8, 9), logprobs=(-0.25, -2.0), finish_reason="stop", weight_version="step_1", cached_tokens=4
)


def _rollouts(*completions: Completion, step: int = 1, staleness: int | None = None) -> Rollouts:
    """A group at one problem, with these completions."""
    return Rollouts(
        step=step,
        group_size=len(completions),
        graded=tuple(_graded(sample, completion) for sample, completion in enumerate(completions)),
        rewards=torch.arange(len(completions)).float(),
        components={},
        partial=True,
        staleness=staleness,
    )


def _graded(sample: int, completion: Completion) -> GradedTrajectory:
    own = written(completion.token_ids, weight_version=completion.weight_version, earlier=completion.earlier)
    own = replace(own, logprobs=(0.0, *completion.logprobs))
    return scored(attempt(3, own, sample_index=sample, sampling_seed=sample), float(sample), "wrong")


def test_a_part_and_its_rest_are_one_completion_with_the_versions_of_both() -> None:
    """The last token of a part that was aborted is sampled again."""
    whole = followed(kept(PART), REST)
    assert whole == Completion(
        token_ids=(5, 6, 8, 9),
        logprobs=(-0.5, -1.5, -0.25, -2.0),
        finish_reason="stop",
        weight_version="step_1",
        earlier=(("step_0", 2),),
        cached_tokens=2,
    )
    again = replace(whole, finish_reason=ABORTED)
    assert followed(kept(again), replace(REST, weight_version="step_2")).earlier == (("step_0", 2), ("step_1", 1))
    same = followed(kept(again), REST)
    assert (same.earlier, same.weight_version, len(same.token_ids)) == ((("step_0", 2),), "step_1", 5)
    assert kept(REST) is REST, "it has ended"


def test_each_token_has_the_age_of_the_weights_that_sampled_it() -> None:
    old = replace(REST, weight_version="step_0")
    assert _rollouts(followed(kept(PART), REST), old, REST).ages.tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    assert _rollouts(followed(kept(PART), REST), step=2, staleness=1).ages.tolist() == [1, 1, 0, 0]


def test_the_loss_of_a_response_of_two_policies_weighs_each_token_by_the_one_that_sampled_it() -> None:
    """The present policy gives its four tokens the logprobs -1, -1, -0.25 and -2.

    The first two were sampled at -0.5 and -1.5: they weigh exp(-0.5) and exp(0.5), which is cut at 1.5. The other two are the present
    policy's own, and weigh 1. With advantage 2 and a ratio of 1 the losses of the tokens are -2 times these.
    """
    rollout_logprobs = _rollouts(followed(kept(PART), REST)).batch().rollout_logprobs.double()
    old = torch.tensor([-1.0, -1.0, -0.25, -2.0], dtype=torch.float64)
    batch = ratios([[1.0] * 4], [2.0], logprobs=old, old_logprobs=old, rollout_logprobs=rollout_logprobs)
    config = CORRECTIONS.get("token_truncated").config(name="token_truncated", maximum=1.5)
    weights = weights_of(batch, config).per_token
    assert weights.tolist() == pytest.approx([0.60653066, 1.5, 1.0, 1.0])
    loss = loss_of(batch, LOSSES.get("ppo_clip").config(name="ppo_clip")).per_token * weights
    assert loss.tolist() == pytest.approx([-1.21306132, -3.0, -2.0, -2.0])
    assert loss.mean().item() == pytest.approx(-2.05326533)


def test_only_the_tokens_of_the_present_weights_must_have_the_trainers_logprobs(tmp_path: Path) -> None:
    rollouts = _rollouts(followed(kept(PART), REST))

    def judged(trainer: list[float]) -> dict[str, float]:
        return require_the_policys_rollouts(
            rollouts.batch(),
            torch.tensor(trainer),
            Gates(),
            dtype="float32",
            state=tmp_path,
            step=2,
            is_earlier=rollouts.ages > 0,
        )

    assert judged([-1.4, -0.6, -0.25, -2.0]) == {OUTSIDE: 0.0}, "0.9 nats away, which a correction weighs"
    with pytest.raises(UserError, match=r"0\.25 nats per token away from the trainer's"):
        judged([-0.5, -1.5, -0.75, -2.0])
    with pytest.raises(UserError, match=r"has moved by 1\.25 nats .* lower training\.dynamic_sampling\.max_aborts"):
        judged([-1.75, -0.25, -0.25, -2.0])
    with pytest.raises(UserError, match="has moved by nan nats"):
        judged([np.nan, -1.5, -0.25, -2.0])
    old = _rollouts(replace(REST, weight_version="step_0"))
    alone = require_the_policys_rollouts(
        old.batch(),
        torch.tensor([-0.5, -2.0]),
        Gates(),
        dtype="float32",
        state=tmp_path,
        step=2,
        is_earlier=old.ages > 0,
    )
    assert alone == {OUTSIDE: 0.0}, "no token is the present policy's"


def test_parts_are_read_back_with_the_prompts_that_they_are_of(tmp_path: Path) -> None:
    training = Training(prompts_per_step=2, samples_per_prompt=2)
    prompts = [problem(index) for index in range(4)]
    sampler = PromptSampler(prompts, training, seed=1)
    drawn = sampler.draw({"arithmetic": 4}, 0)
    masked = replace(followed(kept(PART), replace(REST, finish_reason=ABORTED)), support=(array("i", [3, 5]),) * 4)
    first, last = drawn[0].prompt.index, drawn[-1].prompt.index
    parts = {last: {0: Part(seed=7, completion=masked), 1: Part(seed=8, completion=REST)}}
    sampler.put_back(drawn, [drawn[1].prompt.index, drawn[2].prompt.index], parts)
    prefetch_state.write(tmp_path, PendingBatches(parts=sampler.parts))
    read = prefetch_state.read(tmp_path, prompts)
    assert read.parts == {1: parts[last]}
    resumed = PromptSampler(prompts, training, seed=1, saved=sampler.saved, parts=read.parts)
    again = resumed.draw({"arithmetic": 3}, 1)
    assert [each.prompt.index for each in again[:2]] == [first, last]
    assert [each.parts for each in again] == [{}, parts[last], {}]


def test_a_row_that_a_round_has_sampled_twice_starts_again() -> None:
    """Which of the two has finished does not follow from the rows."""
    training = Training(prompts_per_step=2, samples_per_prompt=2)
    sampler = PromptSampler([problem(0), problem(1)], training, seed=1, saved={"position": 0, "retired": []})
    drawn = sampler.draw({"arithmetic": 3}, 0)
    twice = next(index for index in (0, 1) if sum(each.prompt.index == index for each in drawn) == 2)
    part = {0: Part(seed=7, completion=REST)}
    sampler.put_back(drawn, [twice], {0: part, 1: part})
    assert {each.prompt.index: each.parts for each in sampler.draw({"arithmetic": 2}, 1)} == {
        twice: {},
        1 - twice: part,
    }
