"""docs/tasks.md: its example is a task as it stands."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagrpo.data import datasets as data_sets
from dagrpo.data.config import Data
from dagrpo.data.prepare import prepare
from dagrpo.data.schema import from_table
from dagrpo.models.folder import save_tokenizer
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.utils.tables import read_parquet

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/tasks.md").read_text()
MODULE = "dagrpo.data.datasets.capitals"


def _block(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(block)


@pytest.fixture
def _with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's file where the registry looks, as if it stood in the package."""
    (tmp_path / "added").mkdir()
    (tmp_path / "added/capitals.py").write_text(_block("python"))
    monkeypatch.setattr(data_sets, "__path__", [*data_sets.__path__, str(tmp_path / "added")])
    yield
    sys.modules.pop(MODULE, None)


@pytest.mark.usefixtures("_with_the_example")
def test_the_example_is_a_whole_task(tmp_path: Path) -> None:
    (tmp_path / "capitals").mkdir()
    (tmp_path / "capitals/train.jsonl").write_text(_block("json"))
    (tmp_path / "capitals/test.jsonl").write_text('{"country": "Spain", "facts": [{"capital": "Madrid"}]}\n')
    (tmp_path / "model").mkdir()
    save_tokenizer(tmp_path / "model", character_tokenizer(512))
    folder = tmp_path / "data/capitals"
    prepare("capitals", folder, Data(mirror=str(tmp_path)), model=tmp_path / "model", evaluate=["capitals"])
    train = from_table(read_parquet(folder / "train.parquet"))
    assert [(example.question, example.ground_truth) for example in train] == [
        ("What is the capital of France?", '["Paris"]'),
        ("What is the capital of Italy?", '["Rome"]'),
    ]
    assert {(example.task, example.verifier, example.data_source) for example in train} == {
        ("capitals", "exact_match", "someone/capitals")
    }
