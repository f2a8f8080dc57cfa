"""Which of a step's trajectories an estimator sees, which of their tokens, and what of a divergence in the reward."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainer.attempts import attempt, scored
from tests.trainer.test_history import ROLLOUTS

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.trajectory import GradedTrajectory, TokenSample
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.update.advantages import step_advantages


def _config(name: str, **keys: Any) -> Choice:
    config: Choice = ADVANTAGES.get(name).config(name=name, **keys)
    return config


def _trajectory(*masks: str, **changes: Any) -> GradedTrajectory:
    """Return an attempt with a sample for each mask: p is a token of the prompt, + one of the policy, o one of what a tool said."""
    samples = [
        TokenSample(
            token_ids=tuple(range(len(mask))),
            loss_mask=tuple(token == "+" for token in mask),
            logprobs=tuple(-1.0 if token == "+" else 0.0 for token in mask),
            weight_version="step_0",
        )
        for mask in masks
    ]
    return scored(attempt(0, *samples, **changes))


def _rollouts(graded: Sequence[GradedTrajectory], rewards: Sequence[float], **changes: Any) -> Rollouts:
    return Rollouts(step=0, group_size=2, graded=tuple(graded), rewards=torch.tensor(rewards), components={}, **changes)


@pytest.mark.parametrize("masks", [["p+++"], ["p+oo++"], ["p+oooo+o+"], ["p++", "po+"]])
def test_what_a_tool_said_is_skipped_by_the_return(masks: list[str]) -> None:
    """Three tokens of the policy and one: returns 1/4, 1/2, 1 and -1/4, the mean 3/8, the squares 1, 1, 25 and 25 / 64."""
    rollouts = _rollouts([_trajectory(*masks), _trajectory("p+")], [1.0, -0.25])
    found = step_advantages(rollouts, _config("reinforce_plus_plus", gamma=0.5), None, None)
    std = (52 / 64 / 3) ** 0.5
    assert found.tolist() == pytest.approx([-0.125 / std, 0.125 / std, 0.625 / std, -0.625 / std])


def test_a_single_trajectory_that_is_left_is_compared_by_those_that_look_beyond_its_group() -> None:
    lost = _trajectory("p+", stop_reason="excluded")
    graded = [_trajectory("p+"), lost, _trajectory("p+"), _trajectory("p+")]
    rollouts = _rollouts(graded, [1.0, 9.0, 0.0, 0.5])
    assert step_advantages(rollouts, _config("rloo"), None, None).tolist() == [0.0, -0.5, 0.5]
    # Mean 1/2, variance 1/4.
    found = step_advantages(rollouts, _config("reinforce_plus_plus"), None, None)
    assert found.tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-6)


def test_rewards_are_compared_with_the_greedy_one_of_their_own_problem() -> None:
    """Whose greedy completion was left out, of that nothing is learned."""
    graded = [_trajectory("p+") for _ in range(6)]
    rollouts = _rollouts(graded, [1.0, 0.0, 1.0, 0.0, 1.0, 0.5], greedy_rewards=torch.tensor([0.25, math.nan, 1.0]))
    found = step_advantages(rollouts, _config("remax"), None, None)
    assert found.tolist() == [0.75, -0.25, 0.0, 0.0, 0.0, -0.5]
    lost = replace(graded[0], trajectory=replace(graded[0].trajectory, stop_reason="excluded"))
    without = replace(rollouts, graded=(*graded[:3], lost, lost, lost))
    assert step_advantages(without, _config("remax"), None, None).tolist() == [0.75, -0.25, 0.0]


def test_a_reward_below_0_is_refused_by_an_estimator_that_takes_none() -> None:
    rollouts = _rollouts([_trajectory("p+") for _ in range(4)], [1.0, 0.0, 0.0, -0.5])
    with pytest.raises(UserError, match=r"step 1: a reward is -0\.5, but algorithm\.advantage maxrl takes none"):
        step_advantages(rollouts, _config("maxrl"), None, None)
    assert step_advantages(rollouts, _config("rloo"), None, None).tolist() == [1.0, -1.0, 0.5, -0.5]
    positive = replace(rollouts, rewards=rollouts.rewards.abs())
    assert step_advantages(positive, _config("maxrl"), None, None)[:2].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
@pytest.mark.parametrize(
    "config", [_config("maxrl"), _config("grpo_passk", normalize_by_std=False), _config("rloo")], ids=lambda c: c.name
)
def test_a_reward_that_is_no_number_is_an_advantage_that_is_none(config: Choice, reward: float) -> None:
    """maxrl takes a mean that is no number for one that is not above 0, and pass@k one for a reward that is not the best."""
    rollouts = _rollouts([_trajectory("p+"), _trajectory("p++")], [0.25, reward])
    assert step_advantages(rollouts, config, None, None)[1:].isnan().all()


def test_a_reward_that_is_no_number_is_seen_also_where_it_is_alone_in_its_group() -> None:
    rollouts = _rollouts([_trajectory("p+"), _trajectory("p+", stop_reason="excluded")], [math.nan, 1.0])
    assert step_advantages(rollouts, _config("grpo"), None, None).isnan().tolist() == [True]


def test_components_reach_the_estimator_with_their_weights() -> None:
    """Of two groups one differs in each component: the sums are +-sqrt(2) and +-1 / sqrt(2), as their weights are 2 and 1."""
    components = {"first": torch.tensor([2.0, 0.0, 0.0, 0.0]), "second": torch.tensor([0.0, 0.0, 7.0, 0.0])}
    rollouts = _rollouts(
        [_trajectory("p+") for _ in range(4)],
        [2.0, 0.0, 7.0, 0.0],
        weights={"first": 2.0, "second": 1.0},
    )
    found = step_advantages(replace(rollouts, components=components), _config("gdpo"), None, None)
    assert found.tolist() == pytest.approx([1.2**0.5, -(1.2**0.5), 0.3**0.5, -(0.3**0.5)], abs=1e-5)


@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus"])
def test_advantages_of_all_trajectories_have_the_bits_of_those_beside_a_group_that_is_not_counted(name: str) -> None:
    graded = [_trajectory("p++"), _trajectory("p+"), _trajectory("p+++"), _trajectory("p+oo+")]
    rewards = [1.0, 0.3, 0.25, 0.7]
    every = step_advantages(_rollouts(graded, rewards), _config(name), None, None)
    equal = [_trajectory("p++"), _trajectory("p+")]
    beside = _rollouts([*graded, *equal], [*rewards, 0.5, 0.5], zero_variance_filter=True)
    found = step_advantages(beside, _config(name), None, None)
    assert torch.equal(found, torch.cat([every, torch.zeros(3)]))


# Of two prompts with two trajectories each: rewards 1, 0, 0 and 0, and 1, 3, 2 and 2 tokens. Penalties sum to 0.2, 0.3, 0, 0.4.
PENALTY = torch.tensor([0.2, 0.1, 0.1, 0.1, 0.0, 0.0, 0.3, 0.1], dtype=torch.float64)


def _advantages(name: str, rollouts: Rollouts, penalty: torch.Tensor | None, **keys: bool) -> list[float]:
    values: list[float] = step_advantages(rollouts, _config(name, **keys), None, penalty).tolist()
    return values


def _without(place: int) -> Rollouts:
    """The same, but for one trajectory that is left out."""
    graded = list(ROLLOUTS.graded)
    graded[place] = replace(
        graded[place], trajectory=replace(graded[place].trajectory, stop_reason="excluded", fault="the network")
    )
    return replace(ROLLOUTS, graded=tuple(graded))


def test_advantages_of_groups_are_those_of_the_rewards_less_their_penalties() -> None:
    """Rewards become 0.8, -0.3, 0 and -0.4: their groups' means are 0.25 and -0.2."""
    advantages = _advantages("grpo", ROLLOUTS, PENALTY, normalize_by_std=False)
    assert advantages == pytest.approx([0.55, *[-0.55] * 3, *[0.2] * 2, *[-0.2] * 2])
    # against the other one of the group
    assert _advantages("rloo", ROLLOUTS, PENALTY) == pytest.approx([1.1, *[-1.1] * 3, *[0.4] * 2, *[-0.4] * 2])


def test_a_penalty_of_zero_is_none() -> None:
    assert _advantages("rloo", ROLLOUTS, 0 * PENALTY) == _advantages("rloo", ROLLOUTS, None)


def _with_a_penalty() -> list[tuple[str, dict[str, bool]]]:
    """Every estimator that a divergence may be taken from the reward for, but the one that needs a policy."""
    found = list[tuple[str, dict[str, bool]]]()
    for name in ADVANTAGES.own_names():
        estimator = ADVANTAGES.get(name)
        keys = {"normalize_by_std": False} if "normalize_by_std" in estimator.config.model_fields else {}
        if not estimator.needs_policy and estimator.refuses_penalty(estimator.config(name=name, **keys)) is None:
            found.append((name, keys))
    return found


@pytest.mark.parametrize(("name", "keys"), _with_a_penalty())
def test_a_small_divergence_moves_no_advantage_far_in_a_group_of_equal_rewards(
    name: str, keys: dict[str, bool]
) -> None:
    """The second group, where a thousandth of the penalties is taken."""
    rollouts = replace(ROLLOUTS, greedy_rewards=torch.zeros(2)) if ADVANTAGES.get(name).needs_greedy else ROLLOUTS
    plain, penalised = (_advantages(name, rollouts, penalty, **keys)[4:] for penalty in (0 * PENALTY, PENALTY / 1000))
    assert plain != penalised == pytest.approx(plain, abs=0.01)


def test_a_trajectory_that_is_left_out_takes_its_penalties_with_it() -> None:
    """Without the second trajectory the first one has nothing to be compared with; the other group's tokens come sooner."""
    left = _without(1)
    penalty = PENALTY[[0, 4, 5, 6, 7]]
    advantages = _advantages("grpo", left, penalty, normalize_by_std=False)
    assert advantages == pytest.approx([0.0, 0.2, 0.2, -0.2, -0.2])


def _of_task(task: str, reward: float) -> GradedTrajectory:
    """An attempt with a component of that reward; of the tasks' rewards, those of one are ten times those of the other."""
    one = _trajectory("p++")
    prompt = replace(one.trajectory.prompt, row=replace(one.trajectory.prompt.row, task=task))
    return replace(one, trajectory=replace(one.trajectory, prompt=prompt), score=replace(one.score, reward=reward))


def _of_tasks(*chosen: tuple[str, float]) -> Rollouts:
    rewards = [reward for _, reward in chosen]
    rollouts = _rollouts([_of_task(*each) for each in chosen], rewards, weights={"accuracy": 1.0})
    return replace(rollouts, components={"accuracy": torch.tensor(rewards)})


A = (("a", 1.0), ("a", 0.0), ("a", 0.5), ("a", 0.5))
B = (("b", 10.0), ("b", 0.0), ("b", 0.0), ("b", 0.0))


def test_the_standard_deviation_of_a_task_is_that_of_its_own_rewards() -> None:
    """The rewards of `a` have the variance (1/4 + 1/4) / 3, those of `b` 75 / 3."""
    mixed = _of_tasks(*A[:2], *B[:2], *A[2:], *B[2:])
    found = step_advantages(mixed, _config("batch_std", per_task=True), None, None)[::2].tolist()
    of_a, of_b = 0.5 / (1 / 6) ** 0.5, 5 / 5
    assert found == pytest.approx([of_a, -of_a, of_b, -of_b, 0, 0, 0, 0], abs=1e-5)


@pytest.mark.parametrize("name", ["batch_std", "gdpo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_an_estimator_over_the_batch_can_look_at_each_task_by_itself(name: str) -> None:
    config, all_differ = _config(name, per_task=True), (*A[:2], ("a", 0.5), ("a", 0.25))
    mixed = _of_tasks(*A[:2], *B[:2], *all_differ[2:], *B[2:])
    found = step_advantages(mixed, config, None, None).reshape(4, 4)
    of_a, of_b = (step_advantages(_of_tasks(*own), config, None, None).reshape(2, 4) for own in (all_differ, B))
    assert torch.equal(found, torch.stack([of_a[0], of_b[0], of_a[1], of_b[1]]))
    assert not torch.allclose(found, step_advantages(mixed, _config(name), None, None).reshape(4, 4))
