"""The prepare stage's work, on real data where it is at hand: counts, drops, the card, bytes, and faults."""

import json
from pathlib import Path

import datasets
import pandas as pd
import pytest

from dagrpo.files import read_parquet, sha256_of
from dagrpo.params.data import Arithmetic, Data
from dagrpo.params.reward import Reward
from dagrpo.records import Example
from dagrpo.rewards.score import grade
from dagrpo.tasks.prepare import prepare, select
from dagrpo.tasks.schema import SCHEMA, from_table

SMALL = Data(arithmetic=Arithmetic(train=40, test=10))
FILES = ("card.json", "test.parquet", "train.parquet")


def _example(question: str, split: str = "train", index: int = 0) -> Example:
    return Example(
        task="sums",
        split=split,
        index=index,
        prompt=({"role": "user", "content": question},),
        question=question,
        answer="#### 1",
        ground_truth="1",
        data_source="sums",
    )


def _read(folder: Path, split: str) -> list[Example]:
    path = folder / f"{split}.parquet"
    return from_table(read_parquet(path), path)


def _small_gsm8k(folder: Path, train: list[str]) -> Path:
    """A mirror with these training lines and one test problem."""
    (folder / "gsm8k").mkdir(parents=True)
    (folder / "gsm8k/train.jsonl").write_text("".join(f"{line}\n" for line in train))
    (folder / "gsm8k/test.jsonl").write_text('{"question": "2 + 2", "answer": "#### 4"}\n')
    return folder


def test_repeats_go_and_test_stays_whole() -> None:
    train = [_example(question, index=i) for i, question in enumerate(["a", "b", "a", "c", "t"])]
    test = [_example(question, "test", i) for i, question in enumerate(["t", "u", "t"])]
    splits, dropped = select({"train": train, "test": test}, Data(max_train=2))
    assert [(e.question, e.index) for e in splits["train"]] == [("a", 0), ("b", 1)]
    assert [(e.question, e.index) for e in splits["test"]] == [("t", 0), ("u", 1)]
    assert dropped == {
        "train: repeated question": 1,
        "test: repeated question": 1,
        "train: question also in test": 1,
        "train: beyond data.max_train": 1,
        "test: beyond data.max_test": 0,
    }


def test_a_train_problem_of_the_whole_test_split_goes_even_when_test_is_cut() -> None:
    test = [_example("t", "test"), _example("u", "test", 1)]
    splits, _ = select({"train": [_example("u")], "test": test}, Data(max_test=1))
    assert splits["train"] == []


def test_the_folder_holds_the_three_files_and_the_card_counts_the_rows(tmp_path: Path) -> None:
    card = prepare("arithmetic", tmp_path / "arithmetic", SMALL)
    assert sorted(path.name for path in (tmp_path / "arithmetic").iterdir()) == list(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["arithmetic"]
    assert json.loads((tmp_path / "arithmetic/card.json").read_text())["counts"] == {"train": 40, "test": 10}
    assert sum(count["train"] for count in card.levels.values()) == len(_read(tmp_path / "arithmetic", "train")) == 40


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare("arithmetic", tmp_path / name, SMALL)
    assert [sha256_of(tmp_path / "one" / f) for f in FILES] == [sha256_of(tmp_path / "two" / f) for f in FILES]


def test_gsm8k_is_complete(data_folder: Path, tmp_path: Path) -> None:
    card = prepare("gsm8k", tmp_path / "gsm8k", Data(mirror=str(data_folder)))
    assert card.counts == card.read == card.expected == {"train": 7473, "test": 1319}
    assert not any(card.dropped.values())
    assert card.raw["gsm8k/test.jsonl"] == sha256_of(data_folder / "gsm8k/test.jsonl")
    assert (card.source, card.origin, card.revision) == ("openai/gsm8k", "mirror", None)
    train, test = (_read(tmp_path / "gsm8k", split) for split in ("train", "test"))
    assert [example.index for example in test] == list(range(1319))
    assert test[0].ground_truth == "18"
    assert not {e.question for e in train} & {e.question for e in test}
    assert all(grade(e.answer, e.ground_truth, Reward()).correct for e in (*train, *test))
    assert all("," not in e.ground_truth for e in (*train, *test))


def test_gsm8k_has_the_same_bytes_wherever_the_mirror_stands(data_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(data_folder)
    for name, mirror in (("one", data_folder), ("two", tmp_path / "elsewhere")):
        prepare("gsm8k", tmp_path / name, Data(mirror=str(mirror), max_train=500))
    assert [sha256_of(tmp_path / "one" / f) for f in FILES] == [sha256_of(tmp_path / "two" / f) for f in FILES]


def test_verl_reads_gsm8k_as_it_is(data_folder: Path, tmp_path: Path) -> None:
    prepare("gsm8k", tmp_path / "gsm8k", Data(mirror=str(data_folder), max_train=20))
    train, test = (str(tmp_path / f"gsm8k/{split}.parquet") for split in ("train", "test"))
    row = pd.read_parquet(test).iloc[0]
    assert [set(message) for message in row["prompt"]] == [{"role", "content"}]
    assert row["reward_model"]["ground_truth"] == "18"
    loaded = datasets.load_dataset("parquet", data_files=[train, test], cache_dir=str(tmp_path / "cache"))["train"]
    assert len(loaded) == 20 + 1319
    assert loaded[0]["prompt"][0]["role"] == "user"
    assert loaded[0]["extra_info"]["split"] == "train"


@pytest.mark.parametrize(
    ("task", "first", "source"),
    [
        ("aime_2024", "204", "Maxwell-Jia/AIME_2024"),
        ("aime_2025", "70", "yentinglin/aime_2025"),
    ],
)
def test_aime_has_thirty_problems_and_nothing_to_train_on(
    data_folder: Path, tmp_path: Path, task: str, first: str, source: str
) -> None:
    card = prepare(task, tmp_path / task, Data(mirror=str(data_folder)))
    assert card.counts == card.expected == {"train": 0, "test": 30}
    assert card.source == source
    assert read_parquet(tmp_path / task / "train.parquet").schema.equals(SCHEMA)
    test = _read(tmp_path / task, "test")
    assert test[0].ground_truth == first
    assert all(e.ground_truth == str(int(e.ground_truth)) and 0 <= int(e.ground_truth) <= 999 for e in test)


def test_limits_keep_the_first_rows_and_say_so(data_folder: Path, tmp_path: Path) -> None:
    card = prepare("gsm8k", tmp_path / "gsm8k", Data(mirror=str(data_folder), max_train=100, max_test=10))
    assert card.counts == {"train": 100, "test": 10}
    assert card.limits == {"max_train": 100, "max_test": 10}
    assert card.dropped["train: beyond data.max_train"] == 7373
    assert card.dropped["test: beyond data.max_test"] == 1309


def test_a_row_without_hashes_names_the_file_and_the_row_and_leaves_nothing(tmp_path: Path) -> None:
    rows = ['{"question": "1 + 1", "answer": "#### 2"}', '{"question": "1 + 2", "answer": "It is 3"}']
    mirror = _small_gsm8k(tmp_path / "mirror", rows)
    with pytest.raises(ValueError, match=r"gsm8k/train\.jsonl, row 2, field `answer` has no `####`"):
        prepare("gsm8k", tmp_path / "data/gsm8k", Data(mirror=str(mirror), max_train=5, max_test=5))
    assert not (tmp_path / "data").exists()


def test_a_failure_leaves_what_was_there_before(tmp_path: Path) -> None:
    rows = ['{"question": "1 + 1", "answer": "#### 2"}']
    mirror = _small_gsm8k(tmp_path / "mirror", rows)
    params = Data(mirror=str(mirror), max_train=5, max_test=5)
    prepare("gsm8k", tmp_path / "gsm8k", params)
    before = [sha256_of(tmp_path / "gsm8k" / f) for f in FILES]
    (mirror / "gsm8k/test.jsonl").unlink()
    with pytest.raises(ValueError, match=r"gsm8k/test\.jsonl is missing"):
        prepare("gsm8k", tmp_path / "gsm8k", params)
    assert [sha256_of(tmp_path / "gsm8k" / f) for f in FILES] == before


def test_an_incomplete_copy_of_gsm8k_is_refused(tmp_path: Path) -> None:
    mirror = _small_gsm8k(tmp_path / "mirror", ['{"question": "1 + 1", "answer": "#### 2"}'])
    with pytest.raises(ValueError, match=r"train\.jsonl holds 1 rows, but the train split of openai/gsm8k has 7,473"):
        prepare("gsm8k", tmp_path / "gsm8k", Data(mirror=str(mirror)))
