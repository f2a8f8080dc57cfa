"""Rollouts with pictures are learned from, recorded, replayed and taken up again, for both families of models."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.everyday import everyday
from tests.trainer import picture_runs, runs

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.source import open_tensors
from dagrpo.core.errors import UserError
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state.digest_table import FILE, read_digests
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.tables import read_parquet
from dagrpo_replay.half_steps import RolloutHalf, update_from
from dagrpo_replay.recomputation import replay
from dagrpo_replay.recorded_run import unfinished

KINDS: dict[str, Vision] = {"qwen2_5_vl": "trained", "qwen3_vl": "frozen"}  # the first is tested every day
# AdamW takes full steps, here of 0.3 in the tower, also where a gradient is rounding alone, as that of a key's bias.
APART: dict[Vision, float] = {"trained": 0.15, "frozen": 1e-4}
FURTHER = (
    1e-4  # share of the tower's numbers that may be further apart, by less than a step: one or two, on some processors
)
STEP = 0.3
Inputs = tuple[Path, Path]


@pytest.fixture(scope="module", params=everyday([*KINDS][:1], KINDS))
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def inputs(family: str, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return picture_runs.make_inputs(tmp_path_factory.mktemp("inputs"), family)


@pytest.fixture(scope="module")
def whole(family: str, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Three steps without an interruption."""
    run = picture_runs.training_run(inputs, tmp_path_factory.mktemp("whole"), 3, KINDS[family])
    runs.execute(run, picture_runs.SeeingEngine)
    return run


def test_the_trainer_sees_what_the_engine_saw_and_learns_from_it(family: str, whole: TrainingRun) -> None:
    metrics = read_parquet(whole.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-4
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0.01
    shown = metrics["rollout/picture_tokens_mean"].to_pylist()
    assert shown == [6 * pictures for pictures in metrics["rollout/pictures_mean"].to_pylist()]
    norms = metrics["policy/vision_grad_norm"].to_pylist() if "policy/vision_grad_norm" in metrics.column_names else []
    assert all(norm > 0 for norm in norms)
    assert bool(norms) == (KINDS[family] == "trained")
    moved = {each.name for each in compare(whole.initial, whole.policy).differences if each.largest}
    assert any("visual" in name for name in moved) == (KINDS[family] == "trained")
    assert any("visual" not in name for name in moved)


@pytest.mark.nightly
def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not(
    family: str, inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = picture_runs.training_run(inputs, tmp_path, 3, KINDS[family])
    runs.execute(run, picture_runs.SeeingEngine, stop=lambda step: step == 3)  # the state is that of step 2
    asked, _ = runs.execute(run, picture_runs.SeeingEngine)
    assert asked == ["load step_2", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def _differences(first: Path, second: Path) -> torch.Tensor:
    """Return how far apart each number of two checkpoints is. [numbers]"""
    ours, theirs = open_tensors(first), open_tensors(second)
    assert ours.specs.keys() == theirs.specs.keys()
    return torch.cat([(ours.read(name) - theirs.read(name)).abs().flatten() for name in ours.specs])


def _train(world: World, inputs: Inputs, out: Path, kind: Vision) -> None:
    runs.execute(picture_runs.training_run(inputs, out, 3, kind), picture_runs.SeeingEngine, world)


@pytest.mark.nightly
def test_two_processes_train_what_one_trains(family: str, inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    together = picture_runs.training_run(inputs, tmp_path, 3, KINDS[family])
    runs.launch(2, _train, inputs, tmp_path, KINDS[family])
    ours, theirs = (read_parquet(run.metrics).to_pylist() for run in (whole, together))
    for one, other in zip(ours, theirs, strict=True):
        assert other == pytest.approx(one, rel=1e-2, abs=1e-4)
    apart = _differences(whole.policy, together.policy)
    if KINDS[family] == "frozen":
        assert float(apart.max()) < APART["frozen"]
    else:
        assert float(apart.max()) < STEP
        assert float((apart >= APART["trained"]).double().mean()) < FURTHER
    tables = [read_parquet(run.rollouts.with_name("step_00003.parquet")) for run in (whole, together)]
    assert tables[0]["completion_ids"] == tables[1]["completion_ids"]


@pytest.mark.nightly
def test_a_replay_finds_the_pictures_again_and_every_bit(whole: TrainingRun, tmp_path: Path) -> None:
    recorded = replace(unfinished(whole.policy.parent, whole.state), state=tmp_path / "none")
    checks = replay(recorded, [3], single_process())
    assert [(check.step, check.difference) for check in checks] == [(1, None), (2, None), (3, None)]
    assert all(check.largest_logprob_difference == 0.0 for check in checks)


def test_a_replay_with_another_split_is_refused(whole: TrainingRun, inputs: Inputs) -> None:
    split = inputs[1]
    content = split.read_bytes()
    split.write_bytes(content + b"x")
    try:
        with pytest.raises(UserError, match=r"train\.parquet is not the file that the run has on record"):
            unfinished(whole.policy.parent, whole.state)
    finally:
        split.write_bytes(content)


@pytest.mark.nightly
def test_rollouts_then_updates_are_a_whole_step(
    family: str, inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    torch.use_deterministic_algorithms(True)
    run = picture_runs.training_run(inputs, tmp_path, 1, KINDS[family])
    half = RolloutHalf(run, single_process(), None, runs.opener([], picture_runs.SeeingEngine))
    assert [step for step, _ in half.write([1], run.rollouts.parent)] == [1]
    table = run.rollouts.with_name("step_00001.parquet")
    assert [step for step, _ in update_from(run, {1: table}, None, single_process())] == [1]
    digests = [read_digests(path.with_name(FILE))[1] for path in (run.metrics, whole.rollouts)]
    assert digests[0] == digests[1]


@pytest.mark.nightly
def test_an_engine_that_goes_on_with_pictures_of_an_earlier_tower_is_found(
    family: str, inputs: Inputs, tmp_path: Path
) -> None:
    if KINDS[family] == "frozen":
        run = picture_runs.training_run(inputs, tmp_path, 2, "frozen")
        assert len(runs.execute(run, picture_runs.StaleEngine)[1]) == 2  # its tower is the first one
        return
    run = picture_runs.training_run(inputs, tmp_path, 3, "trained")
    with pytest.raises(UserError, match="logprobs of engine and trainer more than"):
        runs.execute(run, picture_runs.StaleEngine)
