"""A step's rollouts: which problems, which seeds, and what the update reads of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rollout.single_turns import single_turns
from tests.trainer import runs

from dagrpo.algorithms.advantages.grpo import Config as Grpo
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import GREEDY, Prompt, Trajectory
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.rewards.grading import Grader
from dagrpo.rollout.agents import Agent
from dagrpo.rollout.prompts import PromptRenderer, prompt_indices
from dagrpo.rollout.sampling import sampling_seed
from dagrpo.rollout.session import Session
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.clock import Clock
from dagrpo.trainer.sampling.prompt_sampler import PromptSampler
from dagrpo.trainer.sampling.step_sampler import StepSampler
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.update.advantages import step_advantages
from dagrpo.utils.tables import read_parquet


class _Notebook(runs.ScriptedEngine):
    """Keeps the requests."""

    requests: list[SamplingRequest]

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        self.requests = list(requests)
        return super().generate(requests, **waves)


LOST = 7
# Their seeds make the greedy completions of the step numbered 2 so long: 5, 3, 3 and 2 tokens. Each after the first costs 1/5.
GREEDY_REWARDS = [-0.8, -0.4, -0.4, -0.2]
Inputs = tuple[Path, Path]
_Sampled = tuple[Rollouts, list[SamplingRequest], list[int]]


def _broken_at(is_broken: Callable[[Prompt, int], bool], agent: Agent) -> Agent:
    """Attempts for which `is_broken(prompt, sample)` run into a broken server."""

    async def attempt(prompt: Prompt, sample_index: int, session: Session) -> Trajectory:
        trajectory = await agent(prompt, sample_index, session)
        broken = is_broken(prompt, sample_index)
        return replace(trajectory, stop_reason="excluded", fault="no server") if broken else trajectory

    return attempt


def _sample(
    inputs: Inputs,
    folder: Path,
    step: int,
    is_broken: Callable[[Prompt, int], bool] = lambda prompt, sample: False,
    *,
    max_excluded: float = 0.05,
    permuted: bool = False,
    greedy: bool = False,
    **changed: dict[str, Any],
) -> tuple[Rollouts, list[SamplingRequest]]:
    """The rollouts of a step, and what the engine was asked. `changed`: of the sections training and reward."""
    run = runs.training_run(inputs, folder / "state", folder, steps=3, permuted=permuted)
    excluding = {"agent": {"name": "tool_agent", "max_excluded": max_excluded}}
    run = runs.changed(run, rollout=excluding, **changed)
    tokenizer = load_tokenizer(run.initial)
    problems = read_training_prompts([*run.train_splits.values()], PromptRenderer(tokenizer, run.rollout), run.training)
    engine = _Notebook(run.initial, [])
    engine.load(open_tensors(run.initial), f"step_{step}")
    with Grader(1.0) as grader, single_turns(tokenizer, runs.MAX_NEW_TOKENS) as agent:
        agent.make_attempt = _broken_at(is_broken, agent.make_attempt)
        sampler = StepSampler(
            engine=engine,
            agent=agent,
            grader=grader,
            prompts=problems,
            prompt_sampler=PromptSampler(problems, run.training, run.seed, saved={"position": 4 * step, "retired": []}),
            rollout=run.rollout,
            reward=run.reward,
            training=run.training,
            seed=run.seed,
            state=run.state,
            greedy=greedy,
        )
        return sampler.sample(step, Clock()), engine.requests


def _rollouts_of_a_flaky_agent(inputs: Inputs, folder: Path, *, permuted: bool, max_excluded: float) -> Rollouts:
    """The third attempt at every problem, and all but one at the row LOST, run into a broken server."""

    def is_broken(prompt: Prompt, sample: int) -> bool:
        return sample == 2 or (prompt.index == LOST and sample > 0)

    assert LOST in prompt_indices(7, 0, 4, 10), "the step has the problem whose attempts are lost"
    return _sample(inputs, folder, 0, is_broken, max_excluded=max_excluded, permuted=permuted)[0]


@pytest.mark.parametrize("permuted", [False, True])
def test_excluded_trajectories_have_no_part_in_advantages(permuted: bool, inputs: Inputs, tmp_path: Path) -> None:
    rollouts = _rollouts_of_a_flaky_agent(inputs, tmp_path, permuted=permuted, max_excluded=0.5)
    left = [each.trajectory.prompt.index != LOST or each.trajectory.sample_index == 0 for each in rollouts.graded]
    kept = [place for place in range(16) if left[place] and place % 4 != 2]
    assert rollouts.learned == kept
    assert len(kept) == 10
    scores = [rollouts.graded[place].score.reward for place in kept]
    rewards = rollouts.rewards[kept].tolist()
    assert sorted(rewards) == pytest.approx(sorted(scores))
    assert (rewards != pytest.approx(scores)) == permuted
    advantages = step_advantages(rollouts, Grpo(name="grpo"), None, None)
    groups = torch.tensor(replace(rollouts, advantages=advantages).trajectory_advantages).view(4, 4)
    assert groups[:, 2].tolist() == [0.0] * 4
    assert groups.sum(dim=1).tolist() == pytest.approx([0.0] * 4, abs=1e-5)
    assert sum(bool(group.any()) for group in groups) == 3
    assert rollouts.batch().trajectories.tolist() == kept


def test_too_many_excluded_trajectories_stop_the_run(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"step 1: 6 of 16 trajectories were excluded.*'no server' \(6") as refused:
        _rollouts_of_a_flaky_agent(inputs, tmp_path, permuted=False, max_excluded=0.3)
    kept = tmp_path / "state" / "refused" / "attempts_step_00001.parquet"
    assert str(refused.value).endswith(f"Every attempt is in {kept}.")
    assert read_parquet(kept)["fault"].to_pylist().count("no server") == 6


@pytest.fixture(scope="module")
def sampled(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> _Sampled:
    """(rollouts of the step numbered 2, what the engine was asked for, the rows that the step is to draw)"""
    return (*_sample(inputs, tmp_path_factory.mktemp("sampled"), 2), prompt_indices(7, 8, 4, 10))


def test_greedy_completions_are_graded_and_change_nothing_else(
    inputs: Inputs, tmp_path: Path, sampled: _Sampled
) -> None:
    rollouts, requests = _sample(inputs, tmp_path, 2, greedy=True)
    assert [request.temperature for request in requests] == [0.0, 1.0, 1.0, 1.0, 1.0] * 4
    assert [request for request in requests if request.temperature] == sampled[1]
    assert rollouts.graded == sampled[0].graded
    assert rollouts.greedy_rewards is not None
    assert rollouts.greedy_rewards.tolist() == pytest.approx(GREEDY_REWARDS)


def test_a_greedy_completion_that_is_left_out_is_no_baseline(inputs: Inputs, tmp_path: Path, sampled: _Sampled) -> None:
    lost = sampled[2][0]

    def is_broken(prompt: Prompt, sample: int) -> bool:
        return sample == GREEDY and prompt.index == lost

    rollouts, _ = _sample(inputs, tmp_path, 2, is_broken, max_excluded=0.25, greedy=True)
    assert rollouts.greedy_rewards is not None
    assert rollouts.greedy_rewards.tolist() == pytest.approx([math.nan, *GREEDY_REWARDS[1:]], nan_ok=True)
    with pytest.raises(UserError, match=r"step 3: 1 of 4 trajectories were excluded"):
        _sample(inputs, tmp_path, 2, is_broken, max_excluded=0.2, greedy=True)


def test_greedy_rewards_are_of_the_groups_that_make_up_the_batch(inputs: Inputs, tmp_path: Path) -> None:
    """Five of eight groups: by their seeds the two samples of the second group have 1 and 3 tokens, which cost nothing.

    The greedy completions of the first and the sixth have 5 and 4 tokens. Each token after the third costs 1/3.
    """
    rollouts, requests = _sample(
        inputs,
        tmp_path,
        2,
        greedy=True,
        reward={"components": {"accuracy": {}, "overlong": {"weight": 1.0, "buffer": 3}}},
        training={"prompts_per_step": 5, "samples_per_prompt": 2, "dynamic_sampling": {"oversampling": 1.6}},
    )
    assert [request.temperature for request in requests] == [0.0, 1.0, 1.0] * 8
    assert rollouts.used == (True, False, True, True, True, True, False, False)
    assert rollouts.greedy_rewards is not None
    assert rollouts.greedy_rewards.tolist() == pytest.approx([-2 / 3, 0.0, 0.0, 0.0, -1 / 3])
    attempts = (*rollouts.graded, *rollouts.discarded)
    assert {each.trajectory.sample_index for each in attempts} == {0, 1}


def test_a_control_gives_each_problem_the_greedy_reward_of_another(inputs: Inputs, tmp_path: Path) -> None:
    rollouts, _ = _sample(inputs, tmp_path, 2, permuted=True, greedy=True)
    assert rollouts.greedy_rewards is not None
    assert sorted(rollouts.greedy_rewards.tolist()) == pytest.approx(sorted(GREEDY_REWARDS))
    assert rollouts.greedy_rewards.tolist() != pytest.approx(GREEDY_REWARDS)


def test_each_problem_of_the_step_is_attempted_side_by_side_by_seeds_of_run_step_position_and_sample(
    sampled: _Sampled,
) -> None:
    rollouts, requests, drawn = sampled
    assert [each.trajectory.prompt.index for each in rollouts.graded] == [index for index in drawn for _ in range(4)]
    assert [each.trajectory.sample_index for each in rollouts.graded] == [0, 1, 2, 3] * 4
    expected = [sampling_seed(7, "rollout", 2, position, sample) for position in range(4) for sample in range(4)]
    assert [request.seed for request in requests] == expected


def test_the_update_reads_the_engines_tokens_and_logprobs_as_they_are(sampled: _Sampled) -> None:
    rollouts, _, _ = sampled
    batch = rollouts.batch()
    samples = [each.trajectory.samples[0] for each in rollouts.graded]
    assert batch.sequences.token_ids.tolist() == [token for sample in samples for token in sample.token_ids]
    assert batch.sequences.trained == [each.trajectory.tokens for each in rollouts.graded]
    assert batch.rollout_logprobs.tolist() == pytest.approx(rollouts.logprobs, abs=1e-6)
