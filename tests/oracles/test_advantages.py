"""TRL and verl compute the advantages that are computed here, on random batches.

No function of theirs: maxrl. An epsilon beside a standard deviation (TRL's is 1e-4, here 1e-6) is not seen
where rewards are large. A group of one is
left out here; verl takes its reward for its advantage, TRL has none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.oracles.asking import answers, require
from tests.oracles.batches import LARGE, Kind, batch_of, reward_batch

from dagrpo.algorithms.advantages import ADVANTAGES, advantages_of

SEEDS = 3
EXACT = 1e-12
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An estimator of ours, and what computes it elsewhere."""

    advantage: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    library: str
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind
    near: float

    def __str__(self) -> str:
        options = "".join(f"-{name}={value}" for name, value in self.options.items())
        return f"{self.advantage}-{self.library}-{self.function}{options}"


def _verl(advantage: str, function: str, kind: Kind, near: float = EXACT, **options: Any) -> Callable[..., Case]:
    def with_keys(**keys: Any) -> Case:
        return Case(
            advantage=advantage, keys=keys, library="verl", function=function, options=options, kind=kind, near=near
        )

    return with_keys


def _trl(
    advantage: str, kind: Kind, near: float, *, trainer: str = "GRPOTrainer", **options: Any
) -> Callable[..., Case]:
    def with_keys(**keys: Any) -> Case:
        return Case(
            advantage=advantage, keys=keys, library="trl", function=trainer, options=options, kind=kind, near=near
        )

    return with_keys


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
    """What the libraries compute. [cases x seeds]"""
    batches, cases = {}, []
    for place, case in enumerate(CASES):
        for seed in range(SEEDS):
            values = batch_of(case.kind, seed)
            name = f"{place} {seed}"
            batches[name] = {key: rows.tolist() for key, rows in values.items()}
            cases.append({"library": case.library, "function": case.function, "options": case.options, "batch": name})
    return answers("estimators.py", {"batches": batches, "cases": cases})


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("place", "case"), enumerate(CASES), ids=[str(case) for case in CASES])
def test_the_advantages_are_the_librarys(
    place: int,
    case: Case,
    seed: int,
    theirs: list[dict[str, Any]],
    record_property: Callable[[str, object], None],
) -> None:
    answer = theirs[place * SEEDS + seed]
    require(case.library, answer)
    batch = batch_of(case.kind, seed)
    config = ADVANTAGES.get(case.advantage).config.model_validate({"name": case.advantage, **case.keys})
    ours = advantages_of(reward_batch(batch), config)
    expected = torch.tensor(answer["values"], dtype=torch.float64)[batch["mask"].bool()]
    record_property("largest_difference", float((ours - expected).abs().max()))
    torch.testing.assert_close(ours, expected, rtol=case.near, atol=case.near)
    assert ours.any(), "advantages of 0 compare nothing"


def test_every_estimator_is_compared_but_maxrl() -> None:
    assert {case.advantage for case in CASES} | {"maxrl"} == set(ADVANTAGES.own_names())
