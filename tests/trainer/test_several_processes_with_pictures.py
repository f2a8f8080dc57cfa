"""Two processes that train a policy with pictures do what one does, whether its vision tower is trained or frozen."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.trainer import runs, updates

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.source import open_tensors
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.utils.distributed import single_process
from dagrpo.utils.manifest import MANIFEST

pytestmark = pytest.mark.nightly

MODELS = pytest.mark.parametrize(("family", "kind"), [("qwen2_5_vl", "trained"), ("qwen3_vl", "frozen")])
_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}
_TOWER = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4}


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, checkpoints = tmp_path_factory.mktemp("models"), {}
    for family in ("qwen2_5_vl", "qwen3_vl"):
        shape = Fresh.model_validate(_SHAPE | {"vision": _TOWER | {"family": family}})
        make_model(folder / family, Model(fresh=shape, max_pixels=16 * 64))
        convert(folder / family, folder / f"{family}_initial", Checkpoint.model_validate({"format": "dcp"}))
        checkpoints[family] = folder / f"{family}_initial"
    return checkpoints


@pytest.fixture(scope="module")
def trained(initial: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same three updates by one process and by two, of which the second has nothing to do at times."""
    out = tmp_path_factory.mktemp("trained")
    for family, kind in (("qwen2_5_vl", "trained"), ("qwen3_vl", "frozen")):
        updates.run(initial[family], _new(out / f"{family}_1"), 0, 3, single_process(), kind)  # type: ignore[arg-type]
        _run_together(initial[family], _new(out / f"{family}_2"), 0, 3, kind)
    return {path.name: path for path in out.iterdir()}


def _new(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _run_together(initial: Path, out: Path, first: int, steps: int, kind: str) -> None:
    runs.launch(2, updates.__file__, initial, out, first, steps, 0, kind)


@MODELS
def test_the_updates_are_those_of_one_process(family: str, kind: Vision, trained: dict[str, Path]) -> None:
    alone, together = (json.loads((trained[f"{family}_{n}"] / "seen.json").read_text()) for n in (1, 2))
    for one, other in zip(alone, together, strict=True):
        for name in one:
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(one[name]), atol=2e-4, rtol=2e-3)
    differences = compare(trained[f"{family}_1"] / "policy", trained[f"{family}_2"] / "policy").differences
    assert all(difference.largest is not None and difference.largest < 1e-3 for difference in differences)


@MODELS
def test_a_tower_moves_where_it_is_trained_and_stays_where_it_is_frozen(
    family: str, kind: Vision, initial: dict[str, Path], trained: dict[str, Path]
) -> None:
    for processes in (1, 2):
        differences = compare(initial[family], trained[f"{family}_{processes}"] / "policy").differences
        moved = {difference.name for difference in differences if difference.largest}
        assert any("visual" not in name for name in moved)
        assert any("visual" in name for name in moved) == (kind == "trained")


@MODELS
def test_the_engine_gets_the_weights_that_are_saved(family: str, kind: Vision, trained: dict[str, Path]) -> None:
    for processes in (1, 2):
        folder = trained[f"{family}_{processes}"]
        engine, saved = open_tensors(folder / "engine"), open_tensors(folder / "policy")
        assert engine.specs.keys() == saved.specs.keys()
        assert all(torch.equal(engine.read(name), saved.read(name).to(torch.bfloat16)) for name in saved.specs)


@MODELS
def test_a_resumed_run_leaves_the_bytes_of_an_uninterrupted_one(
    family: str, kind: Vision, initial: dict[str, Path], trained: dict[str, Path], tmp_path: Path
) -> None:
    whole = trained[f"{family}_2"]
    shutil.copytree(whole / "states", tmp_path / "states")
    shutil.rmtree(tmp_path / "states" / "step_00003")
    _run_together(initial[family], tmp_path, 2, 3, kind)
    assert json.loads((tmp_path / "seen.json").read_text()) == json.loads((whole / "seen.json").read_text())[2:]
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (whole / "policy" / MANIFEST).read_bytes()
