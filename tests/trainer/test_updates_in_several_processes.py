"""Two processes that train (FSDP2, gloo) do what one does: an adapter or all weights, with a tower trained or frozen."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.trainer import picture_runs, runs, updates

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.lora_layers import WEIGHTS
from dagrpo.checkpoints.safetensors_file import SafetensorsFile
from dagrpo.checkpoints.source import open_tensors
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.utils.distributed import single_process
from dagrpo.utils.manifest import MANIFEST

pytestmark = pytest.mark.nightly


@dataclass(frozen=True)
class Case:
    family: str | None
    vision: Vision | None
    rank: int

    def make(self, folder: Path) -> Path:
        return (picture_runs.make_inputs(folder, self.family) if self.family else runs.make_inputs(folder))[0]

    def run_together(self, initial: Path, out: Path, first: int) -> None:
        kind = [self.vision] if self.vision else []
        runs.launch(2, updates.__file__, initial, out, first, 3, self.rank, *kind)


CASES = {
    "adapter_of_text": Case(None, None, 4),
    "adapter_of_pictures": Case("qwen2_5_vl", "trained", 4),
    "trained_tower": Case("qwen2_5_vl", "trained", 0),
    "frozen_tower": Case("qwen3_vl", "frozen", 0),
}


@pytest.fixture(scope="module", params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


@pytest.fixture(scope="module")
def initial(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case.make(tmp_path_factory.mktemp("initial"))


@pytest.fixture(scope="module")
def trained(case: Case, initial: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same three updates by one process and by two, of which the second has nothing to do at times.

    An adapter is trained with a divergence to the policy without it.
    """
    folders = {processes: tmp_path_factory.mktemp(f"by_{processes}") for processes in (1, 2)}
    updates.run(initial, folders[1], 0, 3, single_process(), case.vision, case.rank)
    case.run_together(initial, folders[2], 0)
    return folders


def test_the_updates_are_those_of_one_process(case: Case, trained: dict[int, Path]) -> None:
    alone, together = (json.loads((trained[n] / "seen.json").read_text()) for n in (1, 2))
    assert alone[-1]["kl"] > 0
    for one, other in zip(alone, together, strict=True):
        for name in one:
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(one[name]), atol=2e-4, rtol=2e-3)
    differences = compare(trained[1] / "policy", trained[2] / "policy").differences
    assert all(each.largest is not None and each.largest < 1e-3 for each in differences)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_policy_moves_and_a_tower_only_where_it_is_trained(
    processes: int, case: Case, initial: Path, trained: dict[int, Path]
) -> None:
    differences = compare(initial, trained[processes] / "policy").differences
    moved = {each.name for each in differences if (each.largest or 0) > 1e-3 * (case.rank > 0)}
    assert any("visual" not in name for name in moved)
    if not case.rank:
        assert any("visual" in name for name in moved) == (case.vision == "trained")


def test_an_adapter_begins_with_the_same_values_and_is_gathered_whole(case: Case, trained: dict[int, Path]) -> None:
    if not case.rank:
        return
    one, two = (SafetensorsFile(trained[n] / "policy" / "adapter" / WEIGHTS) for n in (1, 2))
    assert one.names == two.names
    assert one.metadata == two.metadata
    for name in one.names:
        torch.testing.assert_close(one.read(name), two.read(name), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_engine_gets_the_weights_that_are_saved(processes: int, trained: dict[int, Path]) -> None:
    engine, saved = open_tensors(trained[processes] / "engine"), open_tensors(trained[processes] / "policy")
    assert engine.specs.keys() == saved.specs.keys()
    assert all(torch.equal(engine.read(name), saved.read(name).to(torch.bfloat16)) for name in saved.specs)


def test_a_resumed_run_leaves_the_bytes_of_an_uninterrupted_one(
    case: Case, initial: Path, trained: dict[int, Path], tmp_path: Path
) -> None:
    shutil.copytree(trained[2] / "states", tmp_path / "states")
    shutil.rmtree(tmp_path / "states" / "step_00003")
    case.run_together(initial, tmp_path, first=2)
    assert json.loads((tmp_path / "seen.json").read_text()) == json.loads((trained[2] / "seen.json").read_text())[2:]
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (trained[2] / "policy" / MANIFEST).read_bytes()
