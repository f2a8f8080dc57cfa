"""What tools may search is written beside the splits, and empty where a task has nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.filters.problems import character_model

from dagrpo.data.config import Data
from dagrpo.data.datasets import arithmetic
from dagrpo.data.prepare import SCHEMA, passages_table, prepare
from dagrpo.data.task import TaskRows
from dagrpo.tools.retrieval import Passage
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet

FEW = Data(arithmetic={"train": 8, "test": 2})
PASSAGES = (Passage(title="Lima", text="Capital of Peru."), Passage(title="Łódź", text="A city of Poland."))


def test_a_task_without_passages_has_an_empty_table(tmp_path: Path) -> None:
    card = prepare("arithmetic", tmp_path / "out", FEW, model=character_model(tmp_path / "model"), evaluate=[])
    table = read_parquet(tmp_path / "out/passages.parquet")
    assert (table.num_rows, table.schema.equals(SCHEMA), card.passages) == (0, True, 0)
    assert ("passages", "0") not in card.summary()


def test_passages_are_written_in_their_order_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(params: Data) -> TaskRows:
        return replace(arithmetic.load(params), passages=PASSAGES)

    monkeypatch.setattr(arithmetic, "TASKS", (replace(arithmetic.TASKS[0], load=load),))
    card = prepare("arithmetic", tmp_path / "out", FEW, model=character_model(tmp_path / "model"), evaluate=[])
    assert read_parquet(tmp_path / "out/passages.parquet").equals(passages_table(PASSAGES))
    assert read_json(tmp_path / "out/card.json")["passages"] == 2
    assert ("passages", "2") in card.summary()
