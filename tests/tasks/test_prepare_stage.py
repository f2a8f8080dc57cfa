"""The prepare stage from its command line: files and provenance, or one sentence and exit code 1."""

import json
import runpy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagrpo.files import read_json, sha256_of
from dagrpo.stage import Stage, main

SCRIPT = Path(__file__).resolve().parents[2] / "workflow/scripts/prepare.py"
GOOD = '{"question": "1 + 1", "answer": "#### 2"}\n'


@pytest.fixture(autouse=True)
def _in_an_empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def _run(task: str, data: dict[str, object]) -> None:
    work: Callable[[Stage], None] = runpy.run_path(str(SCRIPT))["work"]
    names = {"card": "card.json", "train": "train.parquet", "test": "test.parquet", "provenance": "provenance.json"}
    outputs = [part for key, name in names.items() for part in ("--output", f"{key}=data/{task}/{name}")]
    main(
        "prepare", work, ["--experiment", "e", "--params", json.dumps({"data": data}), "--log", "logs/x.log", *outputs]
    )


def test_the_task_is_the_name_of_the_folder_and_provenance_stands_beside_the_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _run("arithmetic", {"arithmetic": {"train": 40, "test": 10}})
    folder = Path("data/arithmetic")
    assert {path.name for path in folder.iterdir()} == {"card.json", "train.parquet", "test.parquet", "provenance.json"}
    outputs = read_json(folder / "provenance.json")["outputs"]
    assert outputs == {str(path): sha256_of(path) for path in folder.iterdir() if path.name != "provenance.json"}
    assert read_json(folder / "card.json")["task"] == "arithmetic"
    assert "train rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (None, "prepare: mirror/gsm8k/train.jsonl is missing: put a copy of openai/gsm8k there"),
        ("", "prepare: mirror/gsm8k/train.jsonl is empty: replace it"),
        (GOOD + '{"question": "1", "ans', "prepare: mirror/gsm8k/train.jsonl, line 2 is not valid JSON"),
        (GOOD + '{"question": "1"}\n', "prepare: mirror/gsm8k/train.jsonl, row 2, field `answer` is missing"),
        (GOOD + '{"question": "1", "answer": "2"}\n', "row 2, field `answer` has no `####` followed by a number"),
    ],
)
def test_bad_raw_data_ends_the_stage_with_one_sentence(
    train: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("mirror/gsm8k")
    folder.mkdir(parents=True)
    (folder / "test.jsonl").write_text(GOOD)
    if train is not None:
        (folder / "train.jsonl").write_text(train)
    with pytest.raises(SystemExit) as stopped:
        _run("gsm8k", {"mirror": "mirror", "max_train": 5, "max_test": 5})
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert not Path("data").exists()


def test_an_unknown_task_ends_the_stage_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run("aime_2023", {})
    assert "prepare: `aime_2023` is not a task: the nearest known one is `aime_202" in capsys.readouterr().err
