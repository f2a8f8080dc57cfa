"""Models of the hub, with pictures and without, against a server on this machine that speaks what a download needs."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoints.conftest import SHAPE
from tests.hub import Hub, point_at, running

from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors, planned_files
from dagrpo.checkpoints.manifest import Manifest, verify
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import UserError
from dagrpo.models.chat_template import MARK, QWEN2_5_VL_TOOLS
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.fresh import make_fresh
from dagrpo.models.make import make_model, make_teacher
from dagrpo.models.pictures import PictureProcessor
from dagrpo.utils.files import read_object
from dagrpo.utils.manifest import MANIFEST

REPOSITORY = "someone/small"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a hub with one model of these files, for whoever asks huggingface_hub inside the block."""
    with running(Hub("models", REPOSITORY, REVISION, files)) as hub:
        point_at(hub.address, monkeypatch)
        yield hub


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the stand-in offers: two shards and what belongs to them."""
    folder = tmp_path_factory.mktemp("source") / "model"
    make_fresh(folder, SHAPE, torch.float32)
    tensors = HuggingFaceTensors(folder)
    write_all(folder, planned_files(tensors, 20_000))
    for name in ("model.safetensors", "origin.json", MANIFEST):
        (folder / name).unlink()
    return folder


@pytest.fixture
def hub(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    unwanted = {"README.md": b"# small", "pytorch_model.bin": b"a pickle", "onnx/config.json": b"{}"}
    with serving({path.name: path.read_bytes() for path in source.iterdir()} | unwanted, monkeypatch) as hub:
        yield hub


def _make(destination: Path, dtype: str = "float32") -> Manifest:
    return make_model(
        destination,
        Model.model_validate({"source": "hub", "repository": REPOSITORY, "revision": REVISION, "dtype": dtype}),
    )


def test_a_hub_model_arrives_with_everything_that_belongs_to_it(hub: Hub, source: Path, tmp_path: Path) -> None:
    manifest = _make(tmp_path / "models" / "small")
    folder = tmp_path / "models" / "small"
    assert verify(folder) == manifest
    kept = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert set(manifest.files) == kept | {"model.safetensors", "origin.json"}
    assert all((folder / name).read_bytes() == (source / name).read_bytes() for name in kept)
    assert json.loads((folder / "origin.json").read_text())["revision"] == REVISION
    assert not [path for path in hub.asked if path.endswith((".bin", ".md")) or "onnx" in path]
    assert [path.name for path in folder.parent.iterdir()] == ["small"]
    expected, tensors = HuggingFaceTensors(source), HuggingFaceTensors(folder)
    assert expected.specs == tensors.specs
    assert all(torch.equal(expected.read(name), tensors.read(name)) for name in tensors.specs)


def test_weights_have_the_type_that_is_asked_for_without_a_copy_of_tied_embeddings(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    state = {name: HuggingFaceTensors(source).read(name) for name in HuggingFaceTensors(source).specs}
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    hub.files = {name: content for name, content in hub.files.items() if "safetensors" not in name}
    hub.files["model.safetensors"] = safetensors.torch.save(state)
    manifest = _make(tmp_path / "small", "bfloat16")
    assert manifest.tensors.count == len(state) - 1
    assert set(manifest.tensors.dtypes) == {"bfloat16"}
    assert json.loads((tmp_path / "small" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    shards = sorted(name for name in hub.files if name.endswith(".safetensors"))
    hub.refused = {shards[-1]}
    with pytest.raises(UserError, match=r"someone/small at commit 0123456789ab is not handed out .* answers 403"):
        _make(tmp_path / "models" / "small")
    assert not (tmp_path / "models" / "small").exists()
    hub.refused = set()
    hub.asked.clear()
    _make(tmp_path / "models" / "small")
    fetched = [request for request in hub.asked if request.startswith("GET") and "/resolve/" in request]
    assert [request.rpartition("/")[2] for request in fetched] == [shards[-1]]


def test_a_file_of_which_the_end_is_missing_is_no_model(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the library's tries
    hub.cut_off = {"tokenizer.json"}
    with pytest.raises(UserError, match=r"broke off while someone/small at commit 0123456789ab was read .*: run again"):
        _make(tmp_path / "models" / "small")
    assert not (tmp_path / "models" / "small").exists()
    hub.cut_off = set()
    assert _make(tmp_path / "models" / "small") == verify(tmp_path / "models" / "small")


def test_a_repository_or_hub_that_is_not_there_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = Model(source="hub", repository="someone/else", revision=REVISION)
    with pytest.raises(UserError, match=r"knows no someone/else: correct model\.repository and model\.revision"):
        make_model(tmp_path / "models" / "small", params)
    point_at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9 cannot be reached .* or set model\.source to gguf"):
        _make(tmp_path / "models" / "small")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        ({"auto_map": {"AutoModel": "x.Y"}, "model_type": "new_kind"}, "needs its own Python code"),
        ({"quantization_config": {}}, "is quantized"),
    ],
)
def test_a_model_that_cannot_be_trained_here_is_refused(
    hub: Hub, tmp_path: Path, addition: dict[str, object], complaint: str
) -> None:
    hub.files["config.json"] = json.dumps(json.loads(hub.files["config.json"]) | addition).encode()
    with pytest.raises(ValueError, match=complaint):
        _make(tmp_path / "models" / "small")
    shutil.rmtree(tmp_path / "models")


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "tokenizer.json"])
def test_a_model_of_which_the_hub_lacks_a_file_is_refused(name: str, hub: Hub, tmp_path: Path) -> None:
    del hub.files[name]
    with pytest.raises(UserError):
        _make(tmp_path / "models" / "small")
    assert not (tmp_path / "models" / "small").exists()


VISION = Vision(family="qwen2_5_vl", depth=1, hidden_size=8, intermediate_size=16, num_heads=2)
SEEING = Fresh(hidden_size=32, num_hidden_layers=1, intermediate_size=16, vision=VISION)
BLIND = Fresh(hidden_size=32, num_hidden_layers=1, intermediate_size=16)
OF_THE_HUB = {"source": "hub", "repository": REPOSITORY, "revision": REVISION}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with pictures of 64 tokens at most."""
    folder = tmp_path_factory.mktemp("seeing") / "model"
    make_fresh(folder, SEEING, torch.float32)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """As the hub hands them out."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("origin.json", MANIFEST)}


@pytest.fixture
def hub_of_seeing(seeing: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(files_of(seeing), monkeypatch) as hub:
        yield hub


def most_pixels(folder: Path) -> int:
    assert verify(folder)
    return int(read_object(folder / "preprocessor_config.json")["max_pixels"])


def test_a_teacher_of_the_hub_sees_a_picture_in_as_many_tokens_as_the_policy(
    hub_of_seeing: Hub, seeing: Path, tmp_path: Path
) -> None:
    limit = 28 * 28 * 9
    make_model(tmp_path / "policy", Model.model_validate({**OF_THE_HUB, "max_pixels": limit}))
    params = Teacher.model_validate(OF_THE_HUB)
    make_teacher(tmp_path / "teacher", params, source=None, student=seeing, max_pixels=limit)
    make_teacher(tmp_path / "unlimited", params, source=None, student=seeing)
    assert most_pixels(tmp_path / "policy") == most_pixels(tmp_path / "teacher") == limit
    assert most_pixels(tmp_path / "unlimited") == most_pixels(seeing)
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


def test_a_template_that_tells_of_tools_becomes_the_only_one(hub_of_seeing: Hub, tmp_path: Path) -> None:
    config = json.loads(hub_of_seeing.files["tokenizer_config.json"])
    hub_of_seeing.files["tokenizer_config.json"] = json.dumps(config | {"chat_template": "an old one"}).encode()
    hub_of_seeing.files["chat_template.json"] = json.dumps({"chat_template": "another"}).encode()
    tokenizer = json.loads(hub_of_seeing.files["tokenizer.json"])
    first = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"].append({**first, "content": MARK, "id": len(tokenizer["model"]["vocab"])})
    params = {**OF_THE_HUB, "chat_template": "qwen2_5_vl_tools"}
    hub_of_seeing.files["tokenizer.json"] = json.dumps(tokenizer).encode()
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
