"""The prepare stage from its command line: files and provenance, or one sentence and the exit code of a mistake."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.filters.problems import character_model
from tests.data.preparing import FILES, dapo_mirror
from tests.pipeline.running import run_stage

from dagrpo.utils.failures import MISTAKE
from dagrpo.utils.files import read_json, sha256_of

GOOD = '{"question": "1 + 1", "answer": "#### 2"}\n'


@pytest.fixture(autouse=True)
def _in_a_project_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    character_model(tmp_path / "models/tiny")
    Path("models/tiny/manifest.json").write_text("{}")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def _run(task: str, data: dict[str, object], longest: int = 600) -> None:
    names = {name.partition(".")[0]: name for name in (*FILES, "provenance.json")}
    outputs = [f"{key}=data/{task}/{name}" for key, name in names.items()]
    params = {
        "data": data,
        "experiment": {"evaluate": [task], "train": task},
        "rollout": {"tools": {}, "chat": {"name": "template"}},
        "training": {"max_prompt_tokens": longest},
    }
    run_stage("prepare", params, ["model=models/tiny/manifest.json"], outputs)


def test_the_task_is_the_name_of_the_folder_and_provenance_stands_beside_the_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _run("arithmetic", {"arithmetic": {"train": 40, "test": 10}})
    folder = Path("data/arithmetic")
    assert {path.name for path in folder.iterdir()} == {*FILES, "provenance.json"}
    provenance = read_json(folder / "provenance.json")
    assert provenance["outputs"] == {
        str(path): sha256_of(path) for path in folder.iterdir() if path.name != "provenance.json"
    }
    assert list(provenance["inputs"]) == ["models/tiny/manifest.json"]
    assert read_json(folder / "card.json")["task"] == "arithmetic"
    assert "train rows" in capsys.readouterr().err


def test_the_summary_shows_what_each_gate_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    dapo_mirror(
        Path("mirror"), [("a", "1"), ("A.", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("d" * 300, "1")], copies=3
    )
    _run("dapo", {"mirror": "mirror", "max_train": 9, "max_test": 9, "held_out": 1, "max_prompt_tokens": 500})
    shown = " ".join(capsys.readouterr().err.split())
    for wanted in (
        "train: exact copies │ 12",
        "train: conflicting answers │ 2",
        "train: repeated question, retyped │ 1",
        "held out from train │ 1",
        "train: prompt too long │ 1",
        "train: shares words with dapo │ 0",
    ):
        assert wanted in shown


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
    assert stopped.value.code == MISTAKE
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 2
    assert not Path("data").exists()


def test_a_prompt_that_training_would_refuse_is_refused_with_the_longest_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dapo_mirror(Path("mirror"), [("a", "1"), ("b" * 300, "1"), ("c" * 200, "1"), ("d", "2")])
    with pytest.raises(SystemExit):
        _run("dapo", {"mirror": "mirror", "max_train": 9, "max_test": 9, "held_out": 1}, longest=400)
    told = capsys.readouterr().err
    assert (
        "train prompts have more than 400 tokens, which is training.max_prompt_tokens; the longest, row 1, has" in told
    )
    assert "set data.max_prompt_tokens to 400" in told
