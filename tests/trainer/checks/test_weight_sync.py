"""The comparison after a weight sync, and the gates before updates."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rollout.scripted_engine import ScriptedEngine

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.engine.interface import HeldWeights
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.trainer.batches.batch import Batch, TokenSequences
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE, require_the_policys_rollouts
from dagrpo.trainer.checks.weight_sync import COMPARED, WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.metrics.step import logprob_differences
from dagrpo.trainer.model.optimizer import require_finite_gradient
from dagrpo.utils.tables import read_parquet

State = dict[str, torch.Tensor]


class _Holding(ScriptedEngine):
    """One or more servers that hold what each was given, each with as many ranks as it was given states."""

    def __init__(self, *held: State | list[State]) -> None:
        super().__init__()
        self.held = [ranks if isinstance(ranks, list) else [ranks] for ranks in held]

    def digests(self) -> list[HeldWeights]:
        return [
            SGLangWeights(tuple({name: digest_on_cpu(each) for name, each in state.items()} for state in ranks))
            for ranks in self.held
        ]


def _weights(step: int) -> State:
    """Eight tensors of 4,096 bytes."""
    drawn = torch.Generator().manual_seed(step)
    return {f"layer.{number}.weight": torch.randn(1024, generator=drawn) for number in range(8)}


def test_an_engine_that_holds_what_it_was_handed_passes_at_every_step() -> None:
    gate = WeightSyncCheck(Gates(), seed=7)
    for step in range(5):
        weights = _weights(step)
        assert gate.check(_Holding(weights, weights), StateTensors(weights), step, updated=step > 0) == {COMPARED: 16}


def test_tensors_that_differ_are_counted_and_named_be_it_by_a_bit() -> None:
    old, new = _weights(0), _weights(1)
    half = new | dict(list(old.items())[:4])
    with pytest.raises(
        UserError, match=r"after step 1 server 1 holds other weights .*: 4 of 8 tensors .* layer\.[0-3]"
    ):
        WeightSyncCheck(Gates(), seed=7).check(_Holding(new, half), StateTensors(new), 1, updated=True)
    flipped = new | {"layer.5.weight": new["layer.5.weight"].clone()}
    flipped["layer.5.weight"].view(torch.int32)[3] ^= 1
    with pytest.raises(UserError, match=r"1 of 8 tensors .* such as layer\.5\.weight"):
        WeightSyncCheck(Gates(), seed=7).check(_Holding(flipped), StateTensors(new), 1, updated=True)


def test_each_rank_of_a_server_is_compared_with_its_share_and_has_to_change() -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    whole, later = torch.arange(32.0).view(4, 8), torch.arange(1.0, 33.0).view(4, 8)

    def ranks(left: torch.Tensor, right: torch.Tensor) -> _Holding:
        return _Holding([{name: left[:, :4]}, {name: right[:, 4:]}])

    gate = WeightSyncCheck(Gates(unchanged_weights=1), seed=7)
    assert gate.check(ranks(whole, whole), StateTensors({name: whole}), 0, updated=False) == {COMPARED: 1}
    assert gate.check(ranks(later, later), StateTensors({name: later}), 1, updated=True) == {COMPARED: 1}
    with pytest.raises(UserError, match="after step 2 server 0 holds other weights"):
        gate.check(ranks(whole, later), StateTensors({name: whole}), 2, updated=True)
    frozen = torch.cat([later[:, :4], whole[:, 4:]], dim=1)  # the share of one rank is as before
    with pytest.raises(UserError, match="in 1 weight syncs in a row not a bit"):
        gate.check(ranks(frozen, frozen), StateTensors({name: frozen}), 2, updated=True)


def test_an_adapter_that_several_ranks_divide_is_refused() -> None:
    adapter = {"base_model.model.model.layers.0.mlp.down_proj.lora_A.weight": torch.zeros(4, 8)}
    with pytest.raises(UserError, match="server 0 divides the adapter over 2 GPUs, so that it cannot be verified"):
        WeightSyncCheck(Gates(), seed=7).check(_Holding([adapter, adapter]), StateTensors(adapter), 0, updated=False)


def test_a_large_model_is_compared_in_parts_that_differ_from_step_to_step() -> None:
    """The first that is drawn, and 2 MiB of others."""
    weights = {f"layer.{number}.weight": torch.zeros(1 << 18) for number in range(4)}  # 1 MiB each
    gate, compared = WeightSyncCheck(Gates(digest_mebibytes=2), seed=7), set()
    for step in range(12):
        for name in weights:
            wrong = {**weights, name: torch.ones(1 << 18)}
            try:
                assert gate.check(_Holding(wrong), StateTensors(weights), step, updated=False) == {COMPARED: 3}
            except UserError:
                compared.add(name)
    assert compared == weights.keys()


def test_a_tensor_larger_than_the_limit_has_its_turn() -> None:
    weights = {"embedding.weight": torch.zeros(1 << 19)}  # 2 MiB
    gate = WeightSyncCheck(Gates(digest_mebibytes=1), seed=7)
    assert gate.check(_Holding(weights), StateTensors(weights), 0, updated=False) == {COMPARED: 1}


@pytest.mark.parametrize("updated", [True, False])
def test_weights_that_never_change_end_the_run_at_the_third_weight_sync_if_the_policy_is_updated(updated: bool) -> None:
    gate, weights = WeightSyncCheck(Gates(), seed=7), _weights(0)
    for step in range(3):
        gate.check(_Holding(weights), StateTensors(weights), step, updated=updated and step > 0)
    expected = pytest.raises(
        UserError, match="after step 3: in 3 weight syncs in a row not a bit of the engine's weights"
    )
    with expected if updated else nullcontext():
        gate.check(_Holding(weights), StateTensors(weights), 3, updated=updated)


def test_an_engine_with_names_of_its_own_is_not_compared_but_has_to_change() -> None:
    gate, other = WeightSyncCheck(Gates(unchanged_weights=1), seed=7), {"experts.w13_weight": torch.ones(3)}
    weights = StateTensors(_weights(0))
    assert gate.check(_Holding(other), weights, 0, updated=False) == {COMPARED: 0}
    with pytest.raises(UserError, match="in 1 weight syncs in a row not a bit"):
        gate.check(_Holding(other), weights, 1, updated=True)


def test_at_0_mebibytes_nobody_is_asked() -> None:
    check = WeightSyncCheck(Gates(digest_mebibytes=0), seed=7)
    assert check.check(ScriptedEngine(), StateTensors({}), 0, updated=True) == {}


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused(norm: float) -> None:
    with pytest.raises(UserError, match=f"the gradient's norm is {norm}"):
        require_finite_gradient(norm)
    require_finite_gradient(1e30)


def test_logprob_differences_are_the_mean_and_the_largest() -> None:
    differences = logprob_differences([-1.0, -2.0, -3.0], torch.tensor([-1.0, -2.5, -2.75]))
    assert differences == {"policy/logprob_difference_mean": 0.25, "policy/logprob_difference_max": 0.5}


def _judged(rollout: list[float], trainer: list[float], dtype: str, state: Path, **gates: Any) -> dict[str, float]:
    """Of a step 3 with a prompt of one token and an answer of so many."""
    batch = Batch(
        sequences=TokenSequences.of([[5, *range(len(rollout))]], [[False] + [True] * len(rollout)]),
        trajectories=torch.tensor([0]),
        rollout_logprobs=torch.tensor(rollout),
        positive=torch.tensor([True]),
    )
    return require_the_policys_rollouts(batch, torch.tensor(trainer), Gates(**gates), dtype=dtype, state=state, step=3)


def test_a_mean_that_rounding_explains_in_bfloat16_is_another_model_in_float32(tmp_path: Path) -> None:
    rollout, trainer = [-1.0, -2.0], [-1.05, -1.95]
    assert _judged(rollout, trainer, "bfloat16", tmp_path) == {OUTSIDE: 0.0}
    with pytest.raises(UserError, match=r"step 3: the engine's logprobs are 0\.05 nats .* float32 explains"):
        _judged(rollout, trainer, "float32", tmp_path)


def test_a_few_tokens_that_are_off_are_found_where_the_mean_hides_them(tmp_path: Path) -> None:
    rollout, trainer = [-1.0] * 100, [-1.0] * 98 + [-1.5] * 2  # 2% of them by 0.5 nats: a mean of 0.01
    with pytest.raises(
        UserError, match=r"step 3: 2% of the tokens .* 0\.01 nats apart .*outside_share: 1%.* is in "
    ) as caught:
        _judged(rollout, trainer, "float32", tmp_path)
    table = read_parquet(tmp_path / "refused/rollouts_step_00003.parquet")
    assert str(tmp_path / "refused/rollouts_step_00003.parquet") in str(caught.value)
    assert table["token_id"].to_pylist() == list(range(100))
    assert [round(each, 3) for each in table["trainer_logprob"].to_pylist()] == trainer
    assert _judged(rollout, trainer, "float32", tmp_path, outside_share=0.02) == {OUTSIDE: 0.02}


def test_in_bfloat16_a_third_of_the_tokens_may_be_off_and_not_two_thirds_nor_a_logprob_that_is_no_number(
    tmp_path: Path,
) -> None:
    rollout, third, most = [-1.0] * 6, [-1.15] * 2 + [-1.0] * 4, [-1.15] * 4 + [-1.0] * 2
    assert _judged(rollout, third, "bfloat16", tmp_path)[OUTSIDE] == pytest.approx(1 / 3)
    with pytest.raises(UserError, match="67% of the tokens"):
        _judged(rollout, most, "bfloat16", tmp_path)
    with pytest.raises(UserError, match="are nan nats"):
        _judged([-1.0], [math.nan], "bfloat16", tmp_path)
