"""docs/tasks.md: its table is the registry's, and its example is a task as it stands."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagrpo.data import datasets as data_sets
from dagrpo.data.config import Data
from dagrpo.data.prepare import prepare
from dagrpo.data.schema import SCHEMA, from_table
from dagrpo.data.source import Source
from dagrpo.data.task import TASKS, get_task
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
    train = from_table(read_parquet(folder / "train.parquet"), folder / "train.parquet")
    assert [(example.question, example.ground_truth) for example in train] == [
        ("What is the capital of France?", '["Paris"]'),
        ("What is the capital of Italy?", '["Rome"]'),
    ]
    assert {(example.task, example.verifier, example.data_source) for example in train} == {
        ("capitals", "exact_match", "someone/capitals")
    }


def test_the_example_is_under_sixty_lines() -> None:
    assert len(_block("python").splitlines()) < 60


def test_the_table_has_every_task_with_its_verifier() -> None:
    table = DOCUMENT.partition("## Where rows come from")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| `")]
    listed = {name: row[4] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {name: get_task(name).verifier for name in TASKS.own_names()}


def test_the_table_names_the_tools_and_says_which_are_oracles() -> None:
    for line in DOCUMENT.splitlines():
        for name in re.findall(r"^\| `(\w+)`", line):
            if name in TASKS.own_names():
                task = get_task(name)
                assert all(f"`{tool}`" in line for tool in task.tools)
                assert ("(oracle)" in line) == task.oracle


def test_every_column_of_a_row_is_explained() -> None:
    explained = DOCUMENT.partition("## What a row of")[2].partition("## Adding a task")[0]
    names = set(SCHEMA.names) | {f"extra_info.{field.name}" for field in SCHEMA.field("extra_info").type}
    names |= {f"reward_model.{field.name}" for field in SCHEMA.field("reward_model").type}
    assert {name for name in names - {"extra_info", "reward_model"} if f"`{name}`" not in explained} == set()


def test_every_mirror_file_is_listed() -> None:
    listed = DOCUMENT.partition("## Where rows come from")[2]
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{data_sets.__name__}.")]
    sources = [value for module in modules for value in vars(module).values() if isinstance(value, Source)]
    assert len(sources) == len({id(each) for each in sources}) == 21
    assert {name for source in sources for name in source.mirror_files.values() if f"`{name}`" not in listed} == set()
