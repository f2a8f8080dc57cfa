"""How often processes add up their gradients, and that it makes no other update."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import reduction_runs, runs

from dagrpo.trainer import sft
from dagrpo.trainer.batches.micro_batches import head_chunk_of, reduction_of
from dagrpo.trainer.config.runtime import SftRuntime, TrainingRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.run import SftRun
from dagrpo.utils.distributed import single_process

MICRO_BATCHES = 4
FLOAT32, ADAPTER, BFLOAT16 = "float32 0", "float32 4", "bfloat16 0"


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.make_inputs(tmp_path_factory.mktemp("initial"))[0]


@pytest.fixture(scope="module")
def done(initial: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out") / "done.json"
    runs.launch(2, reduction_runs.__file__, initial, out)
    read: dict[str, Any] = json.loads(out.read_text())
    return read


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
    policy: str, rank: int, reduction: Any, initial: Path, done: dict[str, Any]
) -> None:
    alone = reduction_runs.update_once(initial, single_process(), reduction, rank, torch.float32)
    assert alone["reductions"] == 0
    assert done[policy][reduction]["seen"] == pytest.approx(alone["seen"], abs=2e-4, rel=2e-3)


@pytest.mark.parametrize("reduction", ["each_mini_batch", "each_micro_batch"])
def test_runtime_says_which_it_is(
    reduction: Any, initial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reduction_of(TrainingRuntime(reduce_gradients=reduction), on_gpu=False) == reduction
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(sft, "reduce_next", lambda policy, kind, *, is_last: asked.append((kind, is_last)))
    run = SftRun(
        model=initial.parent / "model",
        train_split=initial.parent / "train.parquet",
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


def test_in_bfloat16_what_waits_is_added_up_in_float32(initial: Path, done: dict[str, Any]) -> None:
    """As without waiting: each micro-batch's gradient is rounded to bfloat16, and the sum is not."""
    once, often = (done[BFLOAT16][name]["seen"] for name in ("each_mini_batch", "each_micro_batch"))
    assert once == pytest.approx(often, abs=1e-5, rel=1e-4)
