"""Two processes that train an adapter (FSDP2, gloo) do what one process does, of text and of pictures."""

import json
import shutil
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

RANK = 4
KINDS: dict[str, Vision | None] = {"text": None, "qwen2_5_vl": "trained"}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def initial(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("initial")
    return runs.make_inputs(folder)[0] if model == "text" else picture_runs.make_inputs(folder, model)[0]


@pytest.fixture(scope="module")
def trained(model: str, initial: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same three updates by one process and by two, with a divergence to the policy without its adapter."""
    folders = {processes: tmp_path_factory.mktemp(f"by_{processes}") for processes in (1, 2)}
    updates.run(initial, folders[1], 0, 3, single_process(), KINDS[model], RANK)
    _run_together(model, initial, folders[2], 0)
    return folders


def _run_together(model: str, initial: Path, out: Path, first: int) -> None:
    kind = [KINDS[model]] if KINDS[model] else []
    runs.launch(2, updates.__file__, initial, out, first, 3, RANK, *kind)


def test_the_updates_are_those_of_one_process(initial: Path, trained: dict[int, Path]) -> None:
    alone, together = (json.loads((trained[n] / "seen.json").read_text()) for n in (1, 2))
    assert alone[-1]["kl"] > 0
    for one, other in zip(alone, together, strict=True):
        for name in one:
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(one[name]), atol=2e-4, rtol=2e-3)
    differences = compare(trained[1] / "policy", trained[2] / "policy").differences
    assert all(each.largest is not None and each.largest < 1e-3 for each in differences)
    assert max(each.largest or 0 for each in compare(initial, trained[2] / "policy").differences) > 1e-3


def test_an_adapter_begins_with_the_same_values_and_is_gathered_whole(trained: dict[int, Path]) -> None:
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
    model: str, initial: Path, trained: dict[int, Path], tmp_path: Path
) -> None:
    shutil.copytree(trained[2] / "states", tmp_path / "states")
    shutil.rmtree(tmp_path / "states" / "step_00003")
    _run_together(model, initial, tmp_path, first=2)
    assert json.loads((tmp_path / "seen.json").read_text()) == json.loads((trained[2] / "seen.json").read_text())[2:]
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (trained[2] / "policy" / MANIFEST).read_bytes()
