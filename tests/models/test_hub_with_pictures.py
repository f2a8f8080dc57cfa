"""Vision-language models of the hub: the limit of their pictures, a policy's and a teacher's, and the template that tells of tools."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.models.hub import REPOSITORY, REVISION, Hub, serving

from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.models.chat_template import MARK, QWEN2_5_VL_TOOLS
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.fresh import make_fresh
from dagrpo.models.make import make_model, make_teacher
from dagrpo.models.pictures import PictureProcessor
from dagrpo.utils.files import read_object
from dagrpo.utils.manifest import MANIFEST

VISION = Vision(family="qwen2_5_vl", depth=1, hidden_size=8, intermediate_size=16, num_heads=2)
SEEING = Fresh(hidden_size=32, num_hidden_layers=1, intermediate_size=16, vision=VISION)
BLIND = Fresh(hidden_size=32, num_hidden_layers=1, intermediate_size=16)
OF_THE_HUB = {"source": "hub", "repository": REPOSITORY, "revision": REVISION}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with pictures of 64 tokens at most."""
    folder = tmp_path_factory.mktemp("source") / "model"
    make_fresh(folder, SEEING, torch.float32)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """As the hub hands them out."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("origin.json", MANIFEST)}


@pytest.fixture
def hub(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(files_of(source), monkeypatch) as hub:
        yield hub


def most_pixels(folder: Path) -> int:
    assert verify(folder)
    return int(read_object(folder / "preprocessor_config.json")["max_pixels"])


def test_a_teacher_of_the_hub_sees_a_picture_in_as_many_tokens_as_the_policy(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    limit = 28 * 28 * 9
    make_model(tmp_path / "policy", Model.model_validate({**OF_THE_HUB, "max_pixels": limit}))
    params = Teacher.model_validate(OF_THE_HUB)
    make_teacher(tmp_path / "teacher", params, source=None, student=source, max_pixels=limit)
    make_teacher(tmp_path / "unlimited", params, source=None, student=source)
    assert most_pixels(tmp_path / "policy") == most_pixels(tmp_path / "teacher") == limit
    assert most_pixels(tmp_path / "unlimited") == most_pixels(source)
    assert read_object(tmp_path / "teacher" / "origin.json")["max_pixels"] == limit


def test_a_limit_of_pictures_is_nothing_to_a_teacher_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_fresh(tmp_path / "blind", BLIND, torch.float32)
    with serving(files_of(tmp_path / "blind"), monkeypatch):
        make_teacher(
            tmp_path / "teacher",
            Teacher.model_validate(OF_THE_HUB),
            source=None,
            student=tmp_path / "blind",
            max_pixels=7056,
        )
        assert "max_pixels" not in read_object(tmp_path / "teacher" / "origin.json")
        with pytest.raises(UserError, match="which takes text alone: choose a vision-language model"):
            make_model(tmp_path / "policy", Model.model_validate({**OF_THE_HUB, "max_pixels": 7056}))


def test_a_template_that_tells_of_tools_becomes_the_only_one(hub: Hub, tmp_path: Path) -> None:
    config = json.loads(hub.files["tokenizer_config.json"])
    hub.files["tokenizer_config.json"] = json.dumps(config | {"chat_template": "an old one"}).encode()
    hub.files["chat_template.json"] = json.dumps({"chat_template": "another"}).encode()
    tokenizer = json.loads(hub.files["tokenizer.json"])
    first = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"].append({**first, "content": MARK, "id": len(tokenizer["model"]["vocab"])})
    params = {**OF_THE_HUB, "chat_template": "qwen2_5_vl_tools"}
    hub.files["tokenizer.json"] = json.dumps(tokenizer).encode()
    manifest = make_model(tmp_path / "model", Model.model_validate(params))
    assert verify(tmp_path / "model") == manifest
    assert "chat_template.json" not in manifest.files
    assert "chat_template" not in read_object(tmp_path / "model" / "tokenizer_config.json")
    assert load_tokenizer(tmp_path / "model").chat_template == QWEN2_5_VL_TOOLS
    assert read_object(tmp_path / "model" / "origin.json")["chat_template"] == "qwen2_5_vl_tools"
    assert PictureProcessor.of(tmp_path / "model")


def test_that_template_is_refused_for_another_family_and_a_fresh_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"is for a published model, and model\.source is fresh: set model\.chat_t"):
        Model.model_validate({"chat_template": "qwen2_5_vl_tools"})
    make_fresh(tmp_path / "blind", BLIND, torch.float32)
    params = Model.model_validate({**OF_THE_HUB, "chat_template": "qwen2_5_vl_tools"})
    message = r"is for a qwen2_5_vl, and the model is a qwen2: set model\.chat_template to own"
    with serving(files_of(tmp_path / "blind"), monkeypatch), pytest.raises(UserError, match=message):
        make_model(tmp_path / "policy", params)
    assert not (tmp_path / "policy").exists()
