"""The divergence that is taken from the reward, on its way into the advantages; computed by hand."""

from dataclasses import replace

import pytest
import torch
from tests.trainer.test_history import ROLLOUTS

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.core.plugin_sections import Choice
from dagrpo.trainer.batches.rollouts import Rollouts
from dagrpo.trainer.update.advantages import step_advantages

# Of two prompts with two trajectories each: rewards 1, 0, 0 and 0, and 1, 3, 2 and 2 tokens. Penalties sum to 0.2, 0.3, 0, 0.4.
PENALTY = torch.tensor([0.2, 0.1, 0.1, 0.1, 0.0, 0.0, 0.3, 0.1], dtype=torch.float64)


def _advantages(name: str, rollouts: Rollouts, penalty: torch.Tensor | None, **keys: bool) -> list[float]:
    config: Choice = ADVANTAGES.get(name).config(name=name, **keys)
    values: list[float] = step_advantages(rollouts, config, None, penalty).tolist()
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
