"""The commands as a person types them."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoints.conftest import run_command

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.manifest import read_manifest
from dagrpo.checkpoints.source import open_tensors
from dagrpo.core.errors import UserError
from dagrpo.utils.manifest import MANIFEST


@pytest.mark.parametrize("format", ["hf", *FORMATS.names()])
def test_a_model_goes_to_any_format_and_back_by_hand(format: str, pristine: Path, tmp_path: Path) -> None:
    run_command("convert", pristine, tmp_path / "there", "--to", format)
    run_command("convert", tmp_path / "there", tmp_path / "back", "--to", "hf")
    assert (tmp_path / "back" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    assert "26 tensors are equal, 0 differ" in run_command("diff", pristine, tmp_path / "there")
    assert "is whole: " in run_command("verify", tmp_path / "there")


def test_inspect_shows_the_whole_and_every_tensor(pristine: Path) -> None:
    lines = run_command("inspect", pristine).splitlines()
    digest = read_manifest(pristine / MANIFEST).tensors.digest
    assert lines[:2] == ["format: huggingface", "parameters: 8,912 in 26 tensors, 35,648 bytes"]
    assert f"tensor digest: {digest}" in lines
    assert "model.norm.weight  float32  [16]" in lines


def test_diff_shows_names_shapes_types_digests_and_the_largest_difference(pristine: Path, tmp_path: Path) -> None:
    state = safetensors.torch.load_file(pristine / "model.safetensors")
    state["model.norm.weight"][3] += 0.25
    state["model.layers.0.input_layernorm.weight"] = state["model.layers.0.input_layernorm.weight"].bfloat16()
    state["model.layers.1.input_layernorm.weight"] = torch.ones(8)
    state["extra"] = state.pop("model.embed_tokens.weight")
    (tmp_path / "other").mkdir()
    safetensors.torch.save_file(state, tmp_path / "other" / "model.safetensors")
    shown = run_command("diff", pristine, tmp_path / "other", code=1)
    assert f"extra: only in {tmp_path / 'other'}\n" in shown
    assert f"model.embed_tokens.weight: only in {pristine}\n" in shown
    assert "model.layers.1.input_layernorm.weight: shape [16] and [8]\n" in shown
    assert "model.layers.0.input_layernorm.weight: float32 and bfloat16, sha256 " in shown
    assert "largest difference 0.25\n" in shown
    assert "22 tensors are equal, 5 differ; the largest difference is 0.25." in shown


def test_a_name_of_a_tensor_neither_controls_the_terminal_nor_begins_a_line(tmp_path: Path) -> None:
    for folder, name in (("first", "a\x1b[2J\u202eb\nformat: none"), ("second", "b")):
        (tmp_path / folder).mkdir()
        safetensors.torch.save_file({name: torch.ones(1)}, tmp_path / folder / "model.safetensors")
    escaped = r"a\u001b[2J\u202eb\u000aformat: none"
    assert f"{escaped}  float32  [1]" in run_command("inspect", tmp_path / "first").splitlines()
    shown = run_command("diff", tmp_path / "first", tmp_path / "second", code=1)
    assert f"{escaped}: only in {tmp_path / 'first'}" in shown.splitlines()


def test_a_difference_of_nan_is_not_hidden(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", torch.nan)):
        (tmp_path / name).mkdir()
        safetensors.torch.save_file({"w": torch.tensor([1.0, value, 5.0])}, tmp_path / name / "model.safetensors")
    (difference,) = compare(tmp_path / "a", tmp_path / "b").differences
    assert str(difference).endswith("largest difference nan")


def test_verify_notices_weights_that_are_not_those_of_the_manifest(model_folder: Path) -> None:
    content = json.loads((model_folder / MANIFEST).read_text())
    content["tensors"]["digest"] = "0" * 64
    (model_folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="holds other tensors than its manifest says"):
        run_command("verify", model_folder)


def test_an_adapter_that_nobody_named_cannot_be_kept(pristine: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--keep-adapter is given without --adapter"):
        run_command("convert", pristine, tmp_path / "x", "--to", "hf", "--keep-adapter")


def test_nothing_but_a_checkpoint_is_written_over(pristine: Path, model_folder: Path, tmp_path: Path) -> None:
    for destination in (model_folder, model_folder.parent):
        with pytest.raises(ValueError, match="which is read: give another folder to write"):
            run_command("convert", model_folder, destination, "--to", "dcp")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").touch()
    with pytest.raises(ValueError, match="thesis exists and is not a checkpoint of ours"):
        run_command("convert", pristine, tmp_path / "thesis", "--to", "dcp")
    assert (tmp_path / "thesis" / "final.tex").exists()
    (tmp_path / "empty").mkdir()
    run_command("convert", pristine, tmp_path / "empty", "--to", "dcp")
    run_command("convert", pristine, tmp_path / "empty", "--to", "hf")
    assert read_manifest(tmp_path / "empty" / MANIFEST).format == "huggingface"


def test_the_policy_of_a_kept_step_is_converted_by_its_name(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "results/tiny/runs/seed_0"
    run_command("convert", pristine, run / "initial", "--to", "hf")
    write(run / "kept", run / "initial", 2, open_tensors(pristine))
    for source in ("tiny@2", "tiny/seed_0@2", "results/tiny/runs/seed_0@2"):
        run_command("convert", source, tmp_path / "there", "--to", "dcp")
        assert read_manifest(tmp_path / "there" / MANIFEST).tensors == read_manifest(pristine / MANIFEST).tensors
    with pytest.raises(UserError, match="no policy of step 3, but of 2"):
        run_command("convert", "tiny@3", tmp_path / "there", "--to", "hf")


def test_a_format_that_is_not_installed_is_refused_with_what_to_do(pristine: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--to is 'gguf', .* not installed \(there are dcp, huggingface"):
        run_command("convert", pristine, tmp_path / "there", "--to", "gguf")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("option", "message"), [("recipe=x", "the format dcp has no option 'recipe'"), ("recipe", "write NAME=VALUE")]
)
def test_an_option_that_the_format_does_not_take_is_refused(
    option: str, message: str, pristine: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run_command("convert", pristine, tmp_path / "there", "--to", "dcp", "--option", option)
    assert not (tmp_path / "there").exists()
