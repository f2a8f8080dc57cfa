"""Tasks made of a data set's rows: splits in several files, what a task adds, what is not read; the example of docs/tasks.md."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data import datasets as data_sets
from dagrpo.data import source_task
from dagrpo.data.config import Data
from dagrpo.data.datasets import aime, dapo
from dagrpo.data.prepare import prepare
from dagrpo.data.raw_row import RawRow
from dagrpo.data.schema import from_table
from dagrpo.data.source import Place, RawFile, Source
from dagrpo.data.source_task import sourced_task
from dagrpo.data.task import TASKS, Task, _called, chat, get_task
from dagrpo.models.folder import save_tokenizer
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.rewards.verifiers import VERIFIERS
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet


def _to_problem(row: RawRow) -> Row:
    question = row.text("question")
    return Row(prompt=chat(question), question=question, answer="", ground_truth="1")


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A train split in two files of two rows each; the list says which of them were fetched."""
    fetched: list[str] = []

    def fetch(name: str) -> Path:
        fetched.append(name)
        return tmp_path / name

    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text("".join(f'{{"question": "{name} {i}"}}\n' for i in range(2)))
    files = [RawFile(name=n, label=f"sums/{n}", fetch=partial(fetch, n)) for n in ("one.jsonl", "two.jsonl")]
    place = Place(files={"train": files}, origin="hub", revision="0" * 40)
    monkeypatch.setattr(source_task, "hub_place", lambda source: place)
    return fetched


def _task(source: Source, to_row: Callable[[RawRow], Row | None] = _to_problem) -> Task:
    return sourced_task("sums", source, to_row, verifier="math", tools=("calculator",), interaction="answer_form")


def _source(rows: int = 4, *, sampled: bool = False) -> Source:
    return Source(
        repository="someone/sums",
        revision="0" * 40,
        hub_splits={"train": "train"},
        mirror_files={"train": "one.jsonl"},
        columns={"question": ("question",)},
        rows={"train": rows},
        sampled=sampled,
    )


@pytest.mark.usefixtures("two_files")
def test_the_rows_of_several_files_are_one_split(tmp_path: Path) -> None:
    problems = _task(_source()).load(Data())
    train = problems.splits["train"]
    assert [(e.question, e.index) for e in train] == [
        ("one.jsonl 0", 0),
        ("one.jsonl 1", 1),
        ("two.jsonl 0", 2),
        ("two.jsonl 1", 3),
    ]
    assert problems.files == {name: sha256_of(tmp_path / name) for name in ("one.jsonl", "two.jsonl")}
    assert (problems.read, problems.expected) == ({"train": 4, "test": 0}, {"train": 4, "test": 0})
    assert (problems.origin, problems.revision, problems.held_out) == ("hub", "0" * 40, True)


@pytest.mark.usefixtures("two_files")
def test_a_to_row_without_its_return_is_named() -> None:
    def to_row(raw: RawRow) -> Row | None:
        _to_problem(raw)
        return None

    with pytest.raises(UserError, match=r"test_source_task\.py, line \d+: None, .* for every row of sums/one"):
        _task(_source(), to_row).load(Data())


@pytest.mark.usefixtures("two_files")
def test_a_fault_in_a_later_file_names_that_file_and_its_own_row_number_and_an_incomplete_split_the_first() -> None:
    def refuse(row: RawRow) -> Row:
        if row.text("question") == "two.jsonl 1":
            raise row.error("question", "is odd")
        return _to_problem(row)

    with pytest.raises(ValueError, match=r"^sums/two\.jsonl, row 2, field `question` is odd: correct the file\.$"):
        _task(_source(), refuse).load(Data())
    with pytest.raises(ValueError, match=r"^sums/one\.jsonl with 1 more holds 4 rows, but the train split .* has 9"):
        _task(_source(9)).load(Data())


def test_a_source_too_large_is_read_up_to_what_is_asked_for(two_files: list[str]) -> None:
    problems = _task(_source(9, sampled=True)).load(Data(max_train=1, held_out=1))
    assert [task_row.question for task_row in problems.splits["train"]] == ["one.jsonl 0", "one.jsonl 1"]
    assert (problems.read["train"], two_files) == (2, ["one.jsonl"])


def test_the_test_split_alone_is_read_however_large_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[RawRow] = []
    monkeypatch.setattr(source_task, "hub_place", lambda source: _place_of(tmp_path, {"train": 100, "test": 5}))

    def counted(row: RawRow) -> Row:
        read.append(row)
        return _to_problem(row)

    source = replace(_source(100), mirror_files={"train": "train.jsonl", "test": "test.jsonl"})
    task = _called("mine", _task(source, counted))
    everything = task.load(Data())
    assert len(read) == 105
    assert task.load_tests is not None
    alone = task.load_tests(Data())
    assert len(read) == 105 + 5
    assert alone.splits == {"train": [], "test": everything.splits["test"]}
    assert not alone.held_out


def _place_of(folder: Path, rows: Mapping[str, int]) -> Place:
    files = {}
    for split, count in rows.items():
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f'{{"question": "{split} {i}"}}\n' for i in range(count)))
        files[split] = [RawFile(name=path.name, label=path.name, fetch=partial(Path, path))]
    return Place(files=files, origin="hub", revision="0" * 40)


@pytest.mark.usefixtures("two_files")
def test_a_row_has_the_name_that_verl_knows_where_the_source_has_one() -> None:
    """verl's default_compute_score accepts `math_dapo`, and whatever begins with `aime`."""
    row = _task(replace(_source(), scored_as="math_dapo")).load(Data()).splits["train"][0]
    assert row.data_source == dapo.SOURCE.scored_as == "math_dapo"
    assert (aime.AIME_2024.scored_as, aime.AIME_2025.scored_as) == ("aime_2024", "aime_2025")


HEAVY = ("torch", "datasets", "transformers", "PIL", "reasoning_gym", "huggingface_hub", "sympy", "math_verify")


def test_tasks_name_what_exists_and_those_with_a_tool_or_user_that_knows_the_answer_are_oracles() -> None:
    tasks = {name: get_task(name) for name in TASKS.own_names()}
    assert {task.verifier for task in tasks.values()} <= {*VERIFIERS.own_names()}
    assert {name for name, task in tasks.items() if task.oracle} == {"gsm8k_tool", "gsm8k_feedback", "geo3k_tool"}


def test_an_unknown_task_is_an_error_that_gives_the_nearest_known_one() -> None:
    with pytest.raises(
        ValueError, match=r"`gsm8` is not a task: the nearest known one is `gsm8k`; correct experiment\.train"
    ):
        get_task("gsm8")
    with pytest.raises(ValueError, match=r"the known ones are aime_2024, aime_2024_tool, .*, worlds; correct"):
        get_task("zzz")


def test_importing_the_registry_imports_nothing_heavy() -> None:
    program = f"import sys, dagrpo.data.task; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
