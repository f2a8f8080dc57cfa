"""Models of the hub, against a server on this machine that speaks as much of its protocol as a download needs."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoints.conftest import SHAPE
from tests.models.hub import REPOSITORY, REVISION, Hub, point_at, serving

from dagrpo.checkpoints.file_plan import write_all
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors, planned_files
from dagrpo.checkpoints.manifest import Manifest, verify
from dagrpo.core.errors import UserError
from dagrpo.models.config import Model
from dagrpo.models.fresh import make_fresh
from dagrpo.models.make import make_model
from dagrpo.utils.manifest import MANIFEST


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
    assert not [path for path in hub.requested if path.endswith((".bin", ".md")) or "onnx" in path]
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
    hub.requested.clear()
    _make(tmp_path / "models" / "small")
    fetched = [request for request in hub.requested if request.startswith("GET") and "/resolve/" in request]
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
