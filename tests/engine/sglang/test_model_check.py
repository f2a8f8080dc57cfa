"""A model folder that SGLang could not serve is refused before a server starts."""

import json
import shutil
from pathlib import Path

import pytest
from tests.hostile import NOT_IN_THE_FOLDER

from dagrpo.core.errors import UserError
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.sglang.server import SGLangServer, require_servable
from dagrpo.utils.files import write_json


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_an_incomplete_model_folder_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, missing: str, named: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / missing).unlink()
    with (
        pytest.raises(ServerError, match=f"{model} cannot be served, it has no {named}.*: run the stage"),
        open_engine(model, sglang.Config(), tmp_path / "server.log", dtype="float32", deterministic=True),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


@pytest.mark.parametrize("name", NOT_IN_THE_FOLDER, ids=lambda name: repr(name)[:20])
def test_an_index_that_names_other_peoples_files_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, name: object
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    index = json.dumps({"weight_map": {"w": "model.safetensors", "v": name}})
    (model / "model.safetensors.index.json").write_text(index)
    with (
        pytest.raises(UserError, match="which is not a safetensors file of its folder"),
        SGLangServer(model, sglang.Config(), tmp_path / "server.log"),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


def test_more_ranks_than_can_divide_a_model_are_refused_with_those_that_can(tiny_model: Path, tmp_path: Path) -> None:
    require_servable(tiny_model, 4)
    with pytest.raises(UserError, match=r"tensor_parallel is 8, which cannot divide 4 .* set it to one of 1, 2, 4$"):
        require_servable(tiny_model, 8)
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    experts = {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 64, "moe_intermediate_size": 6}
    write_json(model / "config.json", experts)
    with pytest.raises(UserError, match=r"4 key-value heads and an MLP of 2: set it to one of 1, 2$"):
        require_servable(model, 4)
    write_json(model / "config.json", experts | {"vision_config": {"patch_size": 14}})
    write_json(model / "preprocessor_config.json", {})
    with pytest.raises(ServerError, match="tensor_parallel is 2, but a vision tower over several GPUs was never tried"):
        require_servable(model, 2)
