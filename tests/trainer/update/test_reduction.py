"""How often processes add up their gradients, and that it makes no other update."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.trainer import runs
from tests.trainer.updates import TRAINING, counted, rollouts, update_of

from dagrpo.trainer import sft
from dagrpo.trainer.batches.micro_batches import Budget, head_chunk_of, reduction_of
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.config.runtime import Reduction, SftRuntime, TrainingRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.run import SftRun
from dagrpo.utils.distributed import World, single_process

MICRO_BATCHES = 4
FLOAT32, ADAPTER, BFLOAT16 = "float32 0", "float32 4", "bfloat16 0"


def _update_once(world: World, initial: Path, reduction: Reduction, rank: int, dtype: str) -> dict[str, Any]:
    """Update on a single mini-batch of four micro-batches, by a policy with an adapter of that rank (0: none)."""
    own = getattr(torch, dtype)
    policy = load_policy(initial, world, lora=Lora(rank=rank, alpha=8), dtype=own, activation_checkpointing=True)
    budget = Budget(sequences=24 // world.size // MICRO_BATCHES, reduce_gradients=reduction)
    update = update_of(policy, world, budget, initial, training=TRAINING.model_copy(update={"mini_batches": 1}))
    with counted() as sizes:
        stats = update.run(0, rollouts(0))
    second = update.run(1, rollouts(1))  # of weights that the first has moved
    seen = {"norm": stats.grad_norm, "loss": stats.loss, "norm after": second.grad_norm, "loss after": second.loss}
    return {"reductions": len(sizes), "elements": sum(sizes), "seen": seen}


def _update_in_all_ways(world: World, initial: Path) -> dict[str, Any]:
    return {
        name: {
            way: _update_once(world, initial, way, int(name.split()[1]), name.split()[0]) for way in get_args(Reduction)
        }
        for name in (FLOAT32, ADAPTER, BFLOAT16)
    }


@pytest.fixture(scope="module")
def done(inputs: tuple[Path, Path]) -> dict[str, Any]:
    done: dict[str, Any] = runs.launch(2, _update_in_all_ways, inputs[0])[0]
    return done


@pytest.mark.nightly
@pytest.mark.parametrize("policy", [FLOAT32, ADAPTER, BFLOAT16])
def test_gradients_are_reduced_once_for_each_mini_batch_or_for_each_micro_batch(
    policy: str, done: dict[str, Any]
) -> None:
    once, often = (done[policy][name] for name in ("each_mini_batch", "each_micro_batch"))
    assert once["reductions"] > 0
    assert often["reductions"] == MICRO_BATCHES * once["reductions"]
    assert often["elements"] == MICRO_BATCHES * once["elements"]


@pytest.mark.nightly
@pytest.mark.parametrize("reduction", ["each_mini_batch", "each_micro_batch"])
@pytest.mark.parametrize(("policy", "rank"), [(FLOAT32, 0), (ADAPTER, 4)])
def test_two_updates_are_those_of_one_process(
    policy: str, rank: int, reduction: Any, inputs: tuple[Path, Path], done: dict[str, Any]
) -> None:
    alone = _update_once(single_process(), inputs[0], reduction, rank, "float32")
    assert alone["reductions"] == 0
    assert done[policy][reduction]["seen"] == pytest.approx(alone["seen"], abs=2e-4, rel=2e-3)


@pytest.mark.parametrize("reduction", ["each_mini_batch", "each_micro_batch"])
def test_runtime_says_which_it_is(
    reduction: Any, inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reduction_of(TrainingRuntime(reduce_gradients=reduction), on_gpu=False) == reduction
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(sft, "reduce_next", lambda policy, kind, *, is_last: asked.append((kind, is_last)))
    run = SftRun(
        model=inputs[0].with_name("model"),
        train_splits={"arithmetic": inputs[1]},
        seed=3,
        sft=Sft(steps=1, batch_size=6),
        runtime=SftRuntime(micro_batch_size=2, reduce_gradients=reduction),
        state=tmp_path / "state",
        tuned=tmp_path / "tuned",
    )
    sft.fine_tune(run, lambda step, metrics: None, single_process())
    assert asked == [(reduction, False), (reduction, False), (reduction, True)]


@pytest.mark.parametrize("section", [TrainingRuntime, SftRuntime])
def test_by_default_only_gpus_add_up_at_once_and_cut_a_linear_head(section: Any) -> None:
    def chosen(*, on_gpu: bool, **values: Any) -> tuple[str, int | None]:
        runtime = section(**values)
        return reduction_of(runtime, on_gpu=on_gpu), head_chunk_of(runtime, on_gpu=on_gpu)

    assert chosen(on_gpu=True, processes=2) == ("each_micro_batch", 8192)
    assert chosen(on_gpu=True) == ("each_mini_batch", 8192)
    assert chosen(on_gpu=False, processes=2) == ("each_mini_batch", None)
    assert chosen(on_gpu=True, processes=2, reduce_gradients="each_mini_batch", head_chunk_tokens=1 << 30) == (
        "each_mini_batch",
        1 << 30,
    )
    assert head_chunk_of(section(), on_gpu=True, linear_head=False) is None
    assert head_chunk_of(section(head_chunk_tokens=5), on_gpu=True, linear_head=False) == 5  # refused by the policy


@pytest.mark.nightly
def test_in_bfloat16_what_waits_is_added_up_in_float32(done: dict[str, Any]) -> None:
    """As without waiting: each micro-batch's gradient is rounded to bfloat16, and the sum is not."""
    once, often = (done[BFLOAT16][name]["seen"] for name in ("each_mini_batch", "each_micro_batch"))
    assert once == pytest.approx(often, abs=1e-5, rel=1e-4)
