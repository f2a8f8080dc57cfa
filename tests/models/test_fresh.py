"""The fresh model, reproducible and loadable by others; the folder of a teacher, linked or empty, never of another vocabulary."""

import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.checkpoints.conftest import SHAPE
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig, Qwen2ForCausalLM

from dagrpo.algorithms.teacher_config import Teacher
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.tensors import parameter_count
from dagrpo.core.errors import UserError
from dagrpo.models.config import Fresh, Model, Vision
from dagrpo.models.fresh import make_fresh
from dagrpo.models.make import make_model, make_teacher
from dagrpo.utils.files import read_json
from dagrpo.utils.manifest import MANIFEST, fault_of, listed_files

SMALL = Fresh(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32)


def test_the_same_parameters_give_the_same_bytes_whatever_the_place_and_the_callers_random_numbers(
    tmp_path: Path,
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_model(tmp_path / "a", Model(fresh=SMALL))
    assert torch.equal(torch.rand(3), expected)
    make_model(tmp_path / "b", Model(fresh=SMALL))
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()
    assert not [path for path in (tmp_path / "a").iterdir() if str(tmp_path).encode() in path.read_bytes()]


def test_the_default_is_a_qwen2_of_less_than_a_million_parameters(tmp_path: Path) -> None:
    make_model(tmp_path / "a", Model())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert isinstance(model, Qwen2ForCausalLM)
    assert parameter_count(HuggingFaceTensors(tmp_path / "a")) == model.num_parameters() == 821_888
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_folder_tells_an_engine_what_it_needs(tmp_path: Path) -> None:
    make_model(tmp_path / "a", Model(fresh=SMALL, dtype="bfloat16"))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["Qwen2ForCausalLM"], "bfloat16")
    generation = GenerationConfig.from_pretrained(tmp_path / "a")
    assert (generation.eos_token_id, generation.pad_token_id, generation.do_sample) == (3, 0, None)
    assert set(verify(tmp_path / "a").tensors.dtypes) == {"bfloat16"}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_model_with_pictures_has_the_same_bytes_twice_and_all_that_a_server_reads(
    family: Literal["qwen2_5_vl", "qwen3_vl"], tmp_path: Path
) -> None:
    shape = SMALL.model_copy(update={"vision": Vision(family=family, depth=2, hidden_size=16, num_heads=2)})
    for name in ("a", "b"):
        make_model(tmp_path / name, Model(fresh=shape, max_pixels=28 * 28 * 16))
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()
    config, preprocessor, origin = (
        json.loads((tmp_path / "a" / f"{name}.json").read_text())
        for name in ("config", "preprocessor_config", "origin")
    )
    assert (config["model_type"], config["vision_config"]["patch_size"], preprocessor["patch_size"]) == (family, 14, 14)
    assert (preprocessor["max_pixels"], origin["max_pixels"]) == (28 * 28 * 16, 28 * 28 * 16)
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "a").config.image_token_id == 260


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "student"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


@pytest.mark.parametrize("source", ["none", "initial"])
def test_without_a_teacher_to_fetch_the_folder_says_why_it_is_empty(source: str, student: Path, tmp_path: Path) -> None:
    make_teacher(tmp_path / "teacher", Teacher.model_validate({"source": source}), source=None, student=student)
    assert read_json(tmp_path / "teacher" / "origin.json") == {"source": source}
    (entry,) = listed_files(tmp_path / "teacher" / MANIFEST).values()
    assert fault_of(tmp_path / "teacher" / "origin.json", entry) is None


def _made(folder: Path, student: Path, destination: Path) -> None:
    params = Teacher.model_validate({"source": "folder", "folder": str(folder)})
    make_teacher(destination, params, source=folder, student=student)


def test_a_folder_is_the_same_checkpoint_under_another_name(student: Path, tmp_path: Path) -> None:
    make_fresh(tmp_path / "other", SHAPE.model_copy(update={"seed": 5}), torch.float32)
    _made(tmp_path / "other", student, tmp_path / "teacher")
    assert (tmp_path / "teacher" / MANIFEST).read_bytes() == (tmp_path / "other" / MANIFEST).read_bytes()


def test_a_teacher_of_another_vocabulary_or_format_is_refused_in_a_sentence(student: Path, tmp_path: Path) -> None:
    make_fresh(tmp_path / "other", SHAPE.model_copy(update={"calls": {"add": "terms"}}), torch.float32)
    with pytest.raises(UserError, match=r"have not the same vocabulary .* choose a teacher of the") as refused:
        _made(tmp_path / "other", student, tmp_path / "teacher")
    assert str(student) in str(refused.value)
    assert str(tmp_path / "other") in str(refused.value)
    assert len(str(refused.value)) < 500
    convert(student, tmp_path / "dcp", Checkpoint())
    with pytest.raises(UserError, match="is a dcp checkpoint where a huggingface one is needed"):
        _made(tmp_path / "dcp", student, tmp_path / "teacher")
    assert not (tmp_path / "teacher").exists()
