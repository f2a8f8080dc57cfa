"""The prepare stage from its command line: files and provenance, or one sentence and the exit code of a mistake."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.filters.problems import character_model
from tests.data.preparing import FILES, dapo_mirror, mirror_of
from tests.pipeline.running import run_stage

from dagrpo.utils.failures import MISTAKE
from dagrpo.utils.files import read_json, sha256_of


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
        "experiment": {"evaluate": [task], "train_tasks": [task]},
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


def test_bad_raw_data_and_prompts_that_training_would_refuse_end_the_stage_with_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mirror_of(Path("mirror"), {f"gsm8k/{split}.jsonl": b'{"question": "1", "ans' for split in ("train", "test")})
    with pytest.raises(SystemExit) as stopped:
        _run("gsm8k", {"mirror": "mirror", "max_train": 5, "max_test": 5})
    assert stopped.value.code == MISTAKE
    error = capsys.readouterr().err
    assert "prepare: mirror/gsm8k/train.jsonl, line 1 is not valid JSON" in error
    assert len(error.strip().splitlines()) == 2
    dapo_mirror(Path("mirror"), [("a", "1"), ("b" * 300, "1"), ("c" * 200, "1"), ("d", "2")])
    with pytest.raises(SystemExit):
        _run("dapo", {"mirror": "mirror", "max_train": 9, "max_test": 9, "held_out": 1}, longest=400)
    error = capsys.readouterr().err
    assert "more than 400 tokens, which is training.max_prompt_tokens; the longest, row 1, has" in error
    assert "set data.max_prompt_tokens to 400" in error
    assert not Path("data").exists()
