"""Policies of chosen steps: kept while a run goes on, in the same bytes however often it is interrupted."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import everyday
from tests.trainer import runs
from torch import Tensor

from dagrpo.checkpoints import gather as gathered
from dagrpo.checkpoints import kept
from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.lora_layers import whole as whole_tensor
from dagrpo.checkpoints.safetensors_file import write_safetensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.trainer import keeper
from dagrpo.trainer.config.training import Training
from dagrpo.trainer.run import TrainingRun
from dagrpo.utils.distributed import World

Inputs = tuple[Path, Path]
Keep = dict[str, int] | list[int] | None


def _run(inputs: Inputs, out: Path, keep: Keep, steps: int = 4, *, save_every: int = 2, **more: Any) -> TrainingRun:
    run = runs.training_run(inputs, out / "state", out, steps, save_every=save_every, keep_states=2)
    return runs.changed(run, training={"keep_policies": keep, **more})


def _bytes(run: TrainingRun) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.kept.parent.iterdir()} | runs.bytes_of(run)


def _restored(run: TrainingRun, step: int, folder: Path) -> Path:
    kept.restore(run.kept.parent, run.initial, step, folder)
    return folder


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps without an interruption, each of which keeps its policy."""
    run = _run(inputs, tmp_path_factory.mktemp("whole"), {"every": 1})
    runs.execute(run)
    return run


def test_the_kept_policies_are_those_of_shorter_runs(inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    assert kept.steps(whole.kept.parent) == [1, 2, 3, 4]
    for steps, trained in ((3, None), (4, whole)):
        if trained is None:
            trained = _run(inputs, tmp_path / "shorter", None, steps)
            runs.execute(trained)
            assert kept.steps(trained.kept.parent) == []
        assert compare(_restored(whole, steps, tmp_path / "restored"), trained.policy).differences == ()
    plain = _run(inputs, tmp_path / "plain", None)
    runs.execute(plain)
    assert runs.bytes_of(plain) == runs.bytes_of(whole)
    assert sorted(path.name for path in (whole.state / "kept").iterdir()) == [
        "manifest.json",
        *map(kept.delta_file, (1, 2, 3, 4)),
    ]


@pytest.mark.parametrize("stop", everyday([3], [1, 2, 3, 4]))
def test_an_interrupted_run_keeps_the_same_bytes(inputs: Inputs, whole: TrainingRun, tmp_path: Path, stop: int) -> None:
    """A policy that was kept after the last state is written again, and what a kill has left of others is removed."""
    run = _run(inputs, tmp_path, {"every": 1})
    runs.execute(run, stop=lambda step: step == stop)
    folder = run.state / "kept"
    folder.mkdir(exist_ok=True)
    for name in (".step_00004.arrow.k8d2.part", kept.delta_file(4), "step_00001.safetensors"):
        (folder / name).write_bytes(b"half of it")
    runs.execute(run)
    assert _bytes(run) == _bytes(whole)
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.kept.parent.iterdir()}


@pytest.mark.parametrize("step", everyday([4], [2, 3, 4]))
@pytest.mark.parametrize("part", ["write", "write_safetensors"])
def test_a_run_that_is_killed_while_a_policy_is_written_keeps_the_same_bytes(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, part: str
) -> None:
    """Also where the state of that step is whole, and no step is left to take."""
    run, calls = _run(inputs, tmp_path, {"every": 1}), list[int]()
    place, write = (kept if part == "write" else keeper), getattr(kept if part == "write" else keeper, part)

    def killed(*given: Any) -> None:
        calls.append(1)
        if len(calls) == step:
            raise OSError(28, "No space left on device")
        write(*given)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(place, part, killed)
        runs.execute(run)
    runs.execute(run)
    assert _bytes(run) == _bytes(whole)


def test_a_policy_that_cannot_be_kept_costs_no_more_than_the_steps_since_its_state(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that the run could resume from are removed only once the policy is whole."""
    whole, run = (_run(inputs, tmp_path / name, [1, 4], save_every=1) for name in ("whole", "full"))
    runs.execute(whole)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(kept, "write", full)
        runs.execute(run)
    assert runs.execute(run)[0][0] == "load step_1"
    assert _bytes(run) == _bytes(whole)


@pytest.mark.parametrize("section", ["engine", "reward_model"])
def test_a_policy_is_gathered_before_servers_take_the_memory_of_the_trainers_gpus(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    """In the type that it is synced in, and what torch caches of it is returned."""
    gates = {"digest_mebibytes": 0}  # the engine computes in float32
    plain, shared = (
        runs.changed(_run(inputs, tmp_path / name, [2], steps=3, gates=gates), rollout={"dtype": "bfloat16"})
        for name in ("plain", "shared")
    )
    runs.execute(plain)
    shared = runs.changed(shared, runtime={section: {"release_memory": True}})
    order, gather, write = list[str](), whole_tensor, write_safetensors

    class Noting(runs.ScriptedEngine):
        def load(self, weights: Tensors, version: str) -> None:
            super().load(weights, version)
            order.append(f"load {version}")

    def noting_whole(tensor: Tensor) -> Tensor:
        order.append(f"gather {tensor.dtype}")
        return gather(tensor)

    def noting_write(*given: Any) -> None:
        order.append("keep")
        write(*given)
        order.append("kept")

    monkeypatch.setattr(gathered, "whole", noting_whole)
    monkeypatch.setattr(keeper, "write_safetensors", noting_write)
    monkeypatch.setattr(World, "free_cached", lambda world: order.append("free"))
    runs.execute(shared, Noting)
    first = order.index("keep")
    assert first < order.index("load step_2")
    assert {*order[first + 1 : order.index("kept")]} == {"gather torch.bfloat16"}
    assert order[order.index("kept") + 1] == "free"
    assert _bytes(shared) == _bytes(plain)


def test_a_delta_is_computed_while_the_policy_changes(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the gathering of a policy is waited for before the next update."""
    updated, write = threading.Event(), kept.write

    class Noting(runs.ScriptedEngine):
        def load(self, weights: Tensors, version: str) -> None:
            super().load(weights, version)
            if version == "step_2":
                updated.set()

    def late(*given: Any) -> None:
        assert updated.wait(60), "the update waited for a delta"
        write(*given)

    monkeypatch.setattr(kept, "write", late)
    run = _run(inputs, tmp_path, {"every": 1})
    runs.execute(run, Noting)
    assert _bytes(run) == _bytes(whole)


@pytest.mark.parametrize(
    ("first", "then", "sampled"),
    everyday(
        [({"every": 1}, [1, 3], 0), ([4], [3, 4], 2)],
        [
            ({"every": 1}, [1, 3], 0),
            ({"every": 1}, [4], 0),
            ({"every": 1}, None, 0),
            ([2], [2, 4], 0),  # the last state is of step 4
            (None, [3], 2),
            ([4], [3, 4], 2),
            ({"every": 2}, {"every": 1}, 4),
        ],
    ),
)
def test_other_steps_may_be_asked_for_later(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path, first: Keep, then: Keep, sampled: int
) -> None:
    """Steps are repeated from the newest state before a policy that is missing; the result is that of a run that kept them at once."""
    runs.execute(_run(inputs, tmp_path / "one", first))
    run = _run(inputs, tmp_path / "one", then)
    asked, _ = runs.execute(run)
    assert asked.count("generate") == sampled
    at_once = _run(inputs, tmp_path / "other", then)
    runs.execute(at_once)
    assert _bytes(run) == _bytes(at_once)


def test_a_run_says_from_where_it_trains_again_and_why(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for keep in (None, [4], [3, 4], [1, 3]):
        runs.execute(_run(inputs, tmp_path, keep))
        said = " ".join("".join(capsys.readouterr()).split())
        again = re.search(r"the policy of step (\d).*again from step (\d)", said)
        expected = {"[3, 4]": ("3", "2"), "[1, 3]": ("1", "0")}.get(str(keep))
        assert (again and again.groups()) == expected, said


def test_a_damaged_policy_is_trained_again(inputs: Inputs, whole: TrainingRun, tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, {"every": 1})
    runs.execute(run)
    path = run.state / "kept" / kept.delta_file(3)
    path.unlink()  # else its other name in the outputs would be damaged, too
    path.write_bytes(b"damaged")
    asked, _ = runs.execute(run)
    assert asked.count("generate") == 2
    assert _bytes(run) == _bytes(whole)


@pytest.mark.parametrize(
    "more", everyday([{"staleness": 1}], [{"staleness": 1}, {"mini_batches": 2}, {"lora": {"rank": 2}}]), ids=str
)
def test_stale_runs_several_updates_and_adapters_keep_the_policy_of_each_step(
    inputs: Inputs, tmp_path: Path, more: dict[str, Any]
) -> None:
    run = _run(inputs, tmp_path / "one", [2, 3, 4], **more)
    runs.execute(run)
    assert compare(_restored(run, 4, tmp_path / "restored"), run.policy).differences == ()
    shorter = _run(inputs, tmp_path / "shorter", None, steps=3, **more)
    runs.execute(shorter)
    assert compare(_restored(run, 3, tmp_path / "restored"), shorter.policy).differences == ()
    again = _run(inputs, tmp_path / "again", [2, 3, 4], **more)
    runs.execute(again, stop=lambda step: step == 3)
    runs.execute(again)
    assert _bytes(again) == _bytes(run)


def test_a_run_that_ends_early_has_no_policies_of_later_steps(inputs: Inputs, tmp_path: Path) -> None:
    early: dict[str, Any] = {"evaluate_every": 1, "patience": 1, "learning_rate": 1e-9, "learning_rate_warmup_steps": 0}
    run = _run(inputs, tmp_path, [1, 4], **early)
    run = replace(run, held_out_splits=(runs.held_out_splits(tmp_path, "plus", [20, 21]),))
    for sampled in (1, 0):  # the second time nothing is left to do
        asked, _ = runs.execute(run)
        assert asked.count("generate") == sampled
        assert kept.steps(run.kept.parent) == [1]


def _train_in(world: World, initial: str, split: str, out: str, steps: int) -> None:
    runs.execute(_run((Path(initial), Path(split)), Path(out), {"every": 1}, steps), world=world)


@pytest.mark.nightly
def test_two_processes_keep_what_they_have_trained(inputs: Inputs, tmp_path: Path) -> None:
    """Rank 0 gathers it; also in a run that is resumed, in two processes and in one."""
    given = [str(path) for path in inputs]
    for name, steps in (("whole", [4]), ("resumed", [2, 4])):
        for last in steps:
            runs.launch(2, _train_in, *given, str(tmp_path / name), last)
    whole, resumed = (_run(inputs, tmp_path / name, {"every": 1}) for name in ("whole", "resumed"))
    assert compare(_restored(whole, 4, tmp_path / "restored"), whole.policy).differences == ()
    assert kept.steps(whole.kept.parent) == [1, 2, 3, 4]
    assert _bytes(resumed) == _bytes(whole)
    runs.execute(_run(inputs, tmp_path / "whole", [1, 3]))
    assert compare(_restored(whole, 3, tmp_path / "restored"), _restored(resumed, 3, tmp_path / "r")).differences == ()


@pytest.mark.parametrize(
    ("training", "refusal"),
    [
        ({"keep_policies": [5]}, "step 5, but training.steps is 4"),
        ({"keep_policies": {"every": 5}}, "step 5, but training.steps is 4"),
        ({"keep_policies": [2, 1, 2]}, "step 2 twice"),
        ({"keep_policies": [0]}, "greater than or equal to 1"),
        ({"keep_policies": {"every": 0}}, "greater than or equal to 1"),
        ({"keep_policies": {}}, "at least 1"),
        ({"keep_policies": []}, "at least 1"),
        ({"keep_policies": {"each": 1}}, "'every'"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(training: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        Training.model_validate({"steps": 4, **training})


def test_steps_are_counted_and_sorted() -> None:
    assert Training.model_validate({"steps": 7, "keep_policies": {"every": 3}}).kept_steps == [3, 6]
    assert Training.model_validate({"steps": 7, "keep_policies": [7, 1]}).kept_steps == [1, 7]
    assert Training().kept_steps == []
