"""DVC says which raw file a clone lacks, before a stage reads it."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dvc.exceptions import ReproductionError
from dvc.repo import Repo
from tests.everyday import everyday

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import parse
from dagrpo.pipeline.dvc import check
from dagrpo.pipeline.dvc.code import RAW_FOLDER
from dagrpo.pipeline.dvc.file import generate

GSM8K = {"name": "e", "train": "gsm8k", "evaluate": ["gsm8k"], "tasks": ["gsm8k"]}
GEO3K = {"name": "e", "train": "geo3k", "evaluate": ["geo3k"], "tasks": ["geo3k"]}
SEARCH = {"name": "e", "train": "nq_hotpotqa", "evaluate": ["nq_hotpotqa"], "tasks": ["nq_hotpotqa"]}
JUDGE = {"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "notes/rubric.txt"}
VISION = {"fresh": {"vision": {"family": "qwen2_5_vl"}, "max_position_embeddings": 4096}}
PICTURES = {"experiment": GEO3K, "data": {"mirror": "m"}, "model": VISION}
MIRROR = {"experiment": GSM8K, "data": {"mirror": "./copies"}}
# parameters, the file, the key that names it
CASES: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "a file of a mirror": (MIRROR, "copies/gsm8k/train.jsonl", "data.mirror"),
    "a folder of pictures": (PICTURES, "m/geo3k/train.jsonl", "data.mirror"),
    "beside params.yaml": (
        {"experiment": SEARCH, "rollout": {"tools": {"search": {"corpus": "corpus.parquet"}}}},
        "corpus.parquet",
        "rollout.tools.search.corpus",
    ),
    "a rubric": ({"reward": {"components": {"judge": JUDGE}}}, JUDGE["rubric"], "reward.components.judge.rubric"),
    "weights": ({"model": {"source": "gguf", "gguf": "w/t.gguf"}}, "w/t.gguf", "model.gguf"),
}


def _write(file: str, text: str = "{attempt}") -> Path:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text)
    return Path(file)


def _generate(values: Mapping[str, Any]) -> None:
    params = parse(dict(values))
    Path("params.yaml").write_text(params_yaml(params))
    generate(params)


@pytest.mark.parametrize("case", everyday(["a folder of pictures"], CASES))
def test_a_raw_file_that_is_not_here_is_named_with_its_parameter(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, file, key = CASES[case]
    monkeypatch.chdir(tmp_path)
    path = _write(file)
    _generate(values)
    path.unlink()
    if values == PICTURES:
        path.parent.rmdir()
    named = str(path.parent) if values == PICTURES else file
    for _ in ("where it was", "in a clone"):
        with pytest.raises(SystemExit, match=f"^{named}, which {key} names, is missing: "):
            check.main()
        shutil.rmtree(RAW_FOLDER, ignore_errors=True)


def test_dvc_asks_for_a_missing_file_and_goes_on_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True)
    path = _write("copies/gsm8k/train.jsonl")
    _generate(MIRROR)
    shutil.rmtree(RAW_FOLDER)  # as in a clone
    with Repo(".") as repo:
        repo.reproduce("check")
        path.write_text("{another}")
        changed = repo.status(["check", "prepare"])
        assert all(str(RAW_FOLDER) in str(changed[address]) for address in ("check@e", "prepare@e-gsm8k"))
    path.unlink()
    with Repo(".") as repo, pytest.raises(ReproductionError) as refusal:
        repo.reproduce("prepare")
    assert "check@e" in str(refusal.value)
    assert "copies/gsm8k/train.jsonl, which data.mirror names, is missing: put it there" in capfd.readouterr().err
