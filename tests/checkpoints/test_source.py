"""What can be converted from, and what of it goes along."""

import shutil
from pathlib import Path

import pytest

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import format_of, open_checkpoint
from dagrpo.core.errors import UserError
from dagrpo.utils.manifest import MANIFEST

LARGE = 1 << 30


def test_a_plain_download_is_converted_without_what_belongs_to_other_formats(
    pristine: Path, model_folder: Path, tmp_path: Path
) -> None:
    (model_folder / MANIFEST).unlink()
    (model_folder / "original").mkdir()
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "README.md", ".gitattributes", "original/x.json"):
        (model_folder / name).write_text("{}")
    (model_folder / "LICENSE").write_text("free")
    write_as("dcp", open_checkpoint(model_folder), tmp_path / "there", LARGE)
    back = write_as("huggingface", open_checkpoint(tmp_path / "there"), tmp_path / "back", LARGE)
    assert set(back.files) == {*verify(pristine).files, "LICENSE"}
    assert back.tensors == verify(pristine).tensors


@pytest.mark.parametrize(
    "name", ["vocab.txt", "extra.json", "chat_template.jinja", "spiece.model", "LICENSE", "config.json"]
)
def test_what_goes_along_from_a_folder_without_a_manifest_is_no_link_out_of_it(
    model_folder: Path, saved: Path, tmp_path: Path, name: str
) -> None:
    (model_folder / MANIFEST).unlink()
    outside = tmp_path / "outside"
    outside.write_bytes((model_folder / name).read_bytes() if (model_folder / name).exists() else b"private")
    (model_folder / name).unlink(missing_ok=True)
    (model_folder / name).symlink_to(outside)
    with pytest.raises(UserError, match=rf"/{name} is a link out of its folder: put the file itself there"):
        open_checkpoint(model_folder)
    with pytest.raises(UserError, match="is a link out of its folder"):  # nor as the base of other weights
        open_checkpoint(saved, model_folder)


def test_what_goes_along_from_the_hubs_own_cache_may_be_links_to_its_blobs(model_folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--lab--model"
    snapshot, blobs = repository / "snapshots/0123", repository / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(model_folder, blobs)
    for name in (*open_checkpoint(model_folder).auxiliary, "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert open_checkpoint(snapshot).auxiliary == tuple(sorted(open_checkpoint(model_folder).auxiliary))
    (snapshot / "vocab.txt").symlink_to("config.json")
    assert "vocab.txt" in open_checkpoint(snapshot).auxiliary


@pytest.fixture
def saved(pristine: Path, tmp_path: Path) -> Path:
    """A folder as another trainer leaves it: weights alone."""
    (tmp_path / "saved").mkdir()
    shutil.copyfile(pristine / "model.safetensors", tmp_path / "saved" / "model.safetensors")
    return tmp_path / "saved"


@pytest.mark.parametrize("format", FORMATS.names())
def test_the_format_is_known_without_a_manifest(format: str, pristine: Path, tmp_path: Path) -> None:
    write_as(format, open_checkpoint(pristine), tmp_path / "x", LARGE)
    (tmp_path / "x" / MANIFEST).unlink()
    assert format_of(tmp_path / "x") == format
    assert open_checkpoint(tmp_path / "x").summary() == verify(pristine).tensors


def test_the_base_gives_config_and_tokenizer(pristine: Path, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"saved has no config\.json: give the model that training began with"):
        open_checkpoint(saved)
    write_as("huggingface", open_checkpoint(saved, pristine), tmp_path / "back", LARGE)
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    # The base may itself be in another format.
    write_as("dcp", open_checkpoint(pristine), tmp_path / "dcp", LARGE)
    write_as("huggingface", open_checkpoint(saved, tmp_path / "dcp"), tmp_path / "again", LARGE)
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()


def test_a_folder_in_no_format_that_is_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"is not a checkpoint in any format that is installed \(dcp, huggingface"):
        format_of(tmp_path)
