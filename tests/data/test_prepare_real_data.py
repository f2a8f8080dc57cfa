"""The prepare stage's work on real data, where it is at hand: every count is that of the data set."""

from pathlib import Path
from statistics import mean

import datasets
import pandas as pd
import pytest
from tests.data.filters.problems import character_model, qwen3_model
from tests.data.preparing import read_dropped, read_split
from tests.everyday import everyday

from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.data.card import Card
from dagrpo.data.config import Data
from dagrpo.data.filters.prompt_length import count_tokens, rendered
from dagrpo.data.prepare import prepare
from dagrpo.data.schema import SCHEMA
from dagrpo.data.task import get_task
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return character_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def gsm8k(data_folder: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    """The whole of GSM8K, prepared."""
    folder = tmp_path_factory.mktemp("gsm8k") / "gsm8k"
    return folder, prepare("gsm8k", folder, Data(mirror=str(data_folder)), model=model, evaluate=["gsm8k"])


def test_gsm8k_is_complete(data_folder: Path, gsm8k: tuple[Path, Card]) -> None:
    folder, card = gsm8k
    assert card.counts == card.read == card.expected == {"train": 7473, "test": 1319}
    assert not any(card.dropped.values())
    assert card.raw["gsm8k/test.jsonl"] == sha256_of(data_folder / "gsm8k/test.jsonl")
    assert (card.source, card.origin, card.revision) == ("openai/gsm8k", "mirror", None)
    assert card.contamination.by_task == {"gsm8k": 4}
    assert [found.train_index for found in card.contamination.examples["gsm8k"]] == [20, 406, 1314, 5162]
    train, test = (read_split(folder, split) for split in ("train", "test"))
    assert [e.index for e in test] == list(range(1319))
    assert test[0].ground_truth == "18"
    assert not {e.question for e in train} & {e.question for e in test}
    assert all("," not in e.ground_truth for e in (*train, *test))


@pytest.fixture(scope="module")
def dapo(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    """DAPO-Math-17k prepared with Qwen3's tokenizer, compared with AIME 2024."""
    base = tmp_path_factory.mktemp("dapo")
    folder, qwen3 = base / "dapo", qwen3_model(data_folder, base / "qwen3")
    return folder, prepare("dapo", folder, Data(mirror=str(data_folder)), model=qwen3, evaluate=["aime_2024"])


@pytest.mark.nightly
def test_dapo_loses_its_repeats_and_its_conflicting_answers_and_holds_problems_out(dapo: tuple[Path, Card]) -> None:
    folder, card = dapo
    assert card.read == {"train": 17_917, "test": 0}
    # 17,290 distinct prompts, 11 of them with two answers; 10 more questions conflict once typing is forgiven.
    assert card.conflicting_questions["train"] == 21
    assert card.dropped["train: conflicting answers"] == 44
    assert card.dropped["train: repeated question"] + card.dropped["train: repeated question, retyped"] == 1221
    assert card.counts == {"train": 16_140, "test": 512}
    assert card.held_out == 512
    rows = read_dropped(folder)
    assert len(rows) == 17_917 - 16_140 - 512
    conflicts = [row for row in rows if row["reason"] == "conflicting answers"]
    assert len({row["question"] for row in conflicts}) > 11
    assert all("; row " in row["detail"] for row in conflicts)
    assert card.contamination.by_task["aime_2024"] == 4  # words beside phrases of the trade
    assert card.contamination.common_phrases_only["aime_2024"] > 300
    train, test = (read_split(folder, split) for split in ("train", "test"))
    assert not {e.index for e in train} & {e.index for e in test}
    assert {e.split for e in test} == {"test"}
    assert all(60 < e.prompt_tokens < 1600 for e in (*train, *test))


def test_verl_reads_gsm8k_as_it_is(gsm8k: tuple[Path, Card], tmp_path: Path) -> None:
    folder, _ = gsm8k
    train, test = (str(folder / f"{split}.parquet") for split in ("train", "test"))
    row = pd.read_parquet(test).iloc[0]
    assert [set(message) for message in row["prompt"]] == [{"role", "content"}]
    assert row["reward_model"]["ground_truth"] == "18"
    loaded = datasets.load_dataset("parquet", data_files=[train, test], cache_dir=str(tmp_path / "cache"))["train"]
    assert len(loaded) == 7473 + 1319
    assert loaded[0]["prompt"][0]["role"] == "user"
    assert loaded[0]["extra_info"]["split"] == "train"


def test_aime_has_nothing_to_train_on(data_folder: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "aime_2024"
    card = prepare("aime_2024", folder, Data(mirror=str(data_folder)), model=model, evaluate=["aime_2024"])
    assert card.counts == {"train": 0, "test": 30}
    assert card.prompt_tokens.splits["train"] is None
    assert read_parquet(folder / "train.parquet").schema.equals(SCHEMA)


@pytest.mark.parametrize(
    "name",
    everyday(["aime_2024"], ["gsm8k", "aime_2024", "aime_2025", "gsm8k_feedback", "gsm8k_sft", "dapo"]),
)
def test_a_task_declares_the_mean_tokens_of_its_prompts(name: str, data_folder: Path, tmp_path: Path) -> None:
    """Of train, or of the test split where there is no other."""
    task, tokenizer = get_task(name), load_tokenizer(qwen3_model(data_folder, tmp_path / "qwen3"))
    splits = task.load(Data(mirror=str(data_folder))).splits
    texts = [rendered(tokenizer, row) for row in splits["train"] or splits["test"]]
    assert task.prompt_tokens == round(mean(count_tokens(tokenizer, texts)))
