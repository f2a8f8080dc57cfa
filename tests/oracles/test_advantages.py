"""TRL and verl compute the advantages that are computed here, on random batches.

No function of theirs: maxrl. An epsilon beside a standard deviation (TRL's is 1e-4, here 1e-6) is not seen
where rewards are large. A group of one is
left out here; verl takes its reward for its advantage, TRL has none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.oracles.asking import EXACT, SEEDS, Case, estimates, require_equal
from tests.oracles.batches import LARGE, Kind, reward_batch

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of

SINGLE_COUNTS = 1e-7  # TRL's n / (n - 1) and verl's alpha are quotients of counts, of single precision
COUNTED = 1e-8  # verl adds 1e-8 to counts of tokens
WEIGHED = 1e-6  # and to the weights of a baseline, which may be small
SINGLE = 1e-6  # of single precision

PLAIN = Kind()
PENALISED = Kind(penalties=True)
LONE = Kind(sizes=(3, 4, 1, 2), penalties=True)  # with a group of one
ONE_COLUMN = Kind(holes=False, penalties=True)  # a position is the same number of tokens in every response
ONE_TOKEN = Kind(longest=1)
EVEN = Kind(sizes=(4, 4, 4))
EVEN_PENALISED = Kind(sizes=(4, 4, 4), holes=False, penalties=True)
EVEN_LARGE = Kind(sizes=(4, 4, 4), scale=LARGE)
ZEROS = Kind(equal=0.0)


def _case(
    advantage: str, library: str, function: str, kind: Kind, near: float, options: Mapping[str, Any]
) -> Callable[..., Case]:
    def with_keys(**keys: Any) -> Case:
        config = ADVANTAGES.get(advantage).config.model_validate({"name": advantage, **keys})
        return Case(
            name=advantage,
            ours=lambda batch: advantages_of(reward_batch(batch), config),
            library=library,
            function=function,
            options=options,
            kind=kind,
            near=near,
        )

    return with_keys


def _verl(advantage: str, function: str, kind: Kind, near: float = EXACT, **options: Any) -> Callable[..., Case]:
    return _case(advantage, "verl", function, kind, near, options)


def _trl(
    advantage: str, kind: Kind, near: float, *, trainer: str = "GRPOTrainer", **options: Any
) -> Callable[..., Case]:
    return _case(advantage, "trl", trainer, kind, near, options)


RLOO = "RLOOTrainer"
OF_COMPONENTS = "normalize_then_sum"
CASES = [
    _verl("grpo", "grpo", PLAIN)(),
    _verl("grpo", "grpo", PENALISED, norm_adv_by_std_in_grpo=False)(normalize_by_std=False),
    _trl("grpo", EVEN_LARGE, SINGLE_COUNTS, scale_rewards="group")(),
    _trl("grpo", EVEN, EXACT, scale_rewards="none")(normalize_by_std=False),
    _verl("grpo_passk", "grpo_passk", PLAIN)(),
    _verl("grpo_passk", "grpo_passk", PENALISED, norm_adv_by_std_in_grpo=False)(normalize_by_std=False),
    _verl("rloo", "rloo", PENALISED)(),
    _verl("rloo", "rloo_vectorized", PENALISED)(),
    _trl("rloo", EVEN_PENALISED, EXACT, trainer=RLOO, beta=1.0)(),
    _trl("batch_std", EVEN_LARGE, SINGLE_COUNTS, scale_rewards="batch")(),
    # What the others' mean leaves out is the same factor everywhere, which the division takes back.
    _trl("batch_std", EVEN_LARGE, SINGLE_COUNTS, trainer=RLOO, normalize_advantages=True)(std_of="centred"),
    _verl("opo", "opo", PENALISED)(),
    # verl counts rewards that are not 0, the paper groups that have a gradient: the same where all others' rewards are 0.
    _verl("gpg", "gpg", ZEROS, SINGLE_COUNTS)(max_alpha=1000.0),
    # verl whitens over tokens, the paper and TRL over trajectories: the same where each has one token.
    _verl("gdpo", "gdpo", ONE_TOKEN, SINGLE)(),
    _trl("gdpo", EVEN_LARGE, SINGLE_COUNTS, multi_objective_aggregation=OF_COMPONENTS)(),
    _verl("reinforce_plus_plus", "reinforce_plus_plus", LONE, COUNTED)(),
    _verl("reinforce_plus_plus", "reinforce_plus_plus", LONE, COUNTED, gamma=0.9)(gamma=0.9),
    _verl("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", PENALISED, COUNTED)(),
    _verl("remax", "remax", LONE)(),
    _verl("optimal_token_baseline", "tir_optimal_token_baseline", PENALISED, WEIGHED)(learns_lone_tail=True),
    _verl("optimal_token_baseline", "tir_optimal_token_baseline", PENALISED, WEIGHED, handle_zero_tail=False)(),
    # Without tir_, verl counts what stands between the policy's tokens, too.
    _verl("optimal_token_baseline", "optimal_token_baseline", ONE_COLUMN, WEIGHED)(learns_lone_tail=True),
]


@pytest.fixture(scope="module")
def theirs() -> list[dict[str, Any]]:
    return estimates(CASES)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("place", range(len(CASES)), ids=[f"{place}-{case}" for place, case in enumerate(CASES)])
def test_the_advantages_are_the_librarys(
    place: int, seed: int, theirs: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    require_equal(CASES[place], seed, theirs[place * SEEDS + seed], record_property)


def test_every_estimator_is_compared_but_maxrl() -> None:
    assert {case.name for case in CASES} | {"maxrl"} == set(ADVANTAGES.own_names())
