"""Reward models on SGLang servers: the logits of transformers, for tiny random classifiers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from dagrpo.engine import sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.sglang.classifier import BIAS_FILE, SGLangClassifier, open_classifier, with_head_bias
from dagrpo.trainer.sampling.reward_model import ServedRewardModel

pytestmark = [pytest.mark.server, pytest.mark.slow]
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_labels": 1,
}
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def make_classifier(folder: Path, tokenizer_of: Path, family: str = "llama", **changes: Any) -> Path:
    """A random classifier with the tokenizer of another model."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    extra = {"head_dim": 16} if family == "qwen3" else {}
    config = FAMILIES[family](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **(SHAPE | extra | changes)
    )
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits_of(folder: Path, conversations: list[list[int]]) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([tokens])).logits.item() for tokens in conversations]


CONVERSATIONS = [[(7 * length + place) % 90 + 5 for place in range(length)] for length in (1, 2, 33, 500, 1, 64, 2000)]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def served(
    request: pytest.FixtureRequest, fresh_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, SGLangClassifier]]:
    folder = make_classifier(tmp_path_factory.mktemp(request.param) / "model", fresh_model, request.param)
    log = folder.parent / "server.log"
    with open_classifier(folder, sglang.Config(start_timeout=240), log, dtype="float32") as classifier:
        yield folder, classifier


def test_scores_are_the_logits_of_transformers(served: tuple[Path, SGLangClassifier]) -> None:
    folder, classifier = served
    conversations = [[token % 60 for token in each] for each in CONVERSATIONS]
    expected = logits_of(folder, conversations)
    assert max(expected) - min(expected) > 0.05
    assert classifier.scores(conversations) == pytest.approx(expected, abs=1e-4)
    assert classifier.scores(conversations * 40) == pytest.approx(expected * 40, abs=1e-4)
    assert classifier.scores([]) == []


def test_a_served_reward_model_scores_messages_as_transformers_does(served: tuple[Path, SGLangClassifier]) -> None:
    folder, classifier = served
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = ["#### 3", "no", "1+2=3\n#### 3" * 20]
    talks = [[{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": answer}] for answer in answers]
    expected = logits_of(
        folder, [tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False) for talk in talks]
    )
    assert ServedRewardModel(folder, classifier, 4096).scores(talks) == pytest.approx(expected, abs=1e-4)


def test_the_head_of_a_qwen_model_gets_a_bias_of_0(fresh_model: Path, tmp_path: Path) -> None:
    llama, qwen = (make_classifier(tmp_path / family, fresh_model, family) for family in ("llama", "qwen2"))
    (tmp_path / "served").mkdir()
    assert with_head_bias(llama, tmp_path / "served") == llama
    served = with_head_bias(qwen, tmp_path / "served")
    assert {path.name for path in served.iterdir()} == {*(path.name for path in qwen.iterdir()), BIAS_FILE}
    assert load_file(served / BIAS_FILE)["score.bias"].tolist() == [0.0]


def test_a_bias_is_written_through_no_link_of_the_checkpoint(fresh_model: Path, tmp_path: Path) -> None:
    qwen, mine = make_classifier(tmp_path / "qwen2", fresh_model, "qwen2"), tmp_path / "mine"
    mine.write_text("precious")
    (qwen / BIAS_FILE).symlink_to(mine)
    (tmp_path / "served").mkdir()
    assert load_file(with_head_bias(qwen, tmp_path / "served") / BIAS_FILE)["score.bias"].tolist() == [0.0]
    assert mine.read_text() == "precious"


def test_a_model_that_is_no_classifier_of_one_label_is_refused(fresh_model: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="and a reward model is a sequence classifier of one"),
        open_classifier(fresh_model, sglang.Config(), tmp_path / "log", dtype="float32"),
    ):
        pass
    three = make_classifier(tmp_path / "three", fresh_model, num_labels=3)
    with (
        pytest.raises(ServerError, match="of 3 labels"),
        open_classifier(three, sglang.Config(), tmp_path / "log", dtype="float32"),
    ):
        pass
    shutil.rmtree(three)
