"""The hub path, against a stand-in on 127.0.0.1: the real `datasets` asks for the pinned commit and for nothing else."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.hub import Hub, running

from dagrpo.data import source as sources
from dagrpo.data.datasets import aime, gsm8k, mathematics
from dagrpo.data.task import TASKS, get_task

GSM8K_CARD = b"""---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train-*}]
---
"""
LOAD = """
import json, sys
from dagrpo.data.config import Data
from dagrpo.data.task import get_task
try:
    problems = get_task(sys.argv[1]).load(Data(max_train=3, max_test=2, held_out=1))
except ValueError as error:
    sys.exit(str(error))
of = lambda split, field: [str(getattr(example, field)) for example in problems.splits[split]]
print(json.dumps({
    "origin": problems.origin, "revision": problems.revision, "files": problems.files, "read": problems.read,
    "questions": {split: of(split, "question") for split in problems.splits},
    "truths": {split: of(split, "ground_truth") for split in problems.splits},
    "images": {split: [len(example.images) for example in problems.splits[split]] for split in problems.splits},
}))
"""
ServeHub = Callable[[str, str, Mapping[str, bytes]], Hub]


@pytest.fixture
def serve_hub() -> Iterator[ServeHub]:
    """Start a stand-in that holds one data set."""
    with ExitStack() as stack:
        yield lambda repository, commit, files: stack.enter_context(running(Hub("datasets", repository, commit, files)))


def _run(task: str, folder: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """In a process of its own: `datasets` reads its settings when it is imported."""
    command = [sys.executable, "-W", "ignore", "-c", LOAD, task]
    environment = {**os.environ, "HF_HOME": str(folder / "home"), **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _load(task: str, folder: Path, address: str) -> dict[str, Any]:
    done = _run(task, folder, {"HF_ENDPOINT": address})
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _parquet(rows: list[dict[str, object]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def _gsm8k_rows(prefix: str) -> list[dict[str, object]]:
    return [{"question": f"{prefix} {i}", "answer": f"#### {i}"} for i in range(4)]


def test_every_source_is_pinned_to_a_full_commit() -> None:
    for task in map(get_task, TASKS.own_names()):
        if task.source is not None and task.source.revision:
            assert re.fullmatch("[0-9a-f]{40}", task.source.revision)
            assert set(task.source.hub_splits) == set(task.source.mirror_files)


def test_gsm8k_comes_from_the_pinned_commit_and_its_main_configuration(tmp_path: Path, serve_hub: ServeHub) -> None:
    files = {
        "README.md": GSM8K_CARD,
        "main/train-00000-of-00001.parquet": _parquet(_gsm8k_rows("train")),
        "main/test-00000-of-00001.parquet": _parquet(_gsm8k_rows("test")),
        "socratic/train-00000-of-00001.parquet": _parquet(_gsm8k_rows("socratic")),
    }
    stand_in = serve_hub("openai/gsm8k", gsm8k.SOURCE.revision, files)
    loaded = _load("gsm8k", tmp_path, stand_in.address)
    assert (loaded["origin"], loaded["revision"]) == ("hub", gsm8k.SOURCE.revision)
    assert loaded["files"] == {
        name: hashlib.sha256(files[name]).hexdigest() for name in files if name.startswith("main/")
    }
    assert loaded["read"] == {"train": 4, "test": 4}
    assert loaded["questions"]["train"] == ["train 0", "train 1", "train 2", "train 3"]
    assert all(gsm8k.SOURCE.revision in path for path in stand_in.asked if "gsm8k" in path)
    assert not any("socratic/" in path for path in stand_in.asked)


@pytest.mark.nightly
def test_aime_reads_the_only_split_that_the_hub_has_as_its_test_split(tmp_path: Path, serve_hub: ServeHub) -> None:
    rows = [{"ID": f"2024-I-{i}", "Problem": f"Find {i}.", "Solution": "", "Answer": i} for i in range(3)]
    files = {"aime_2024_problems.parquet": _parquet(rows)}
    stand_in = serve_hub("Maxwell-Jia/AIME_2024", aime.AIME_2024.revision, files)
    loaded = _load("aime_2024", tmp_path, stand_in.address)
    assert loaded["truths"] == {"train": [], "test": ["0", "1", "2"]}


@pytest.mark.nightly
def test_files_that_are_not_needed_are_not_downloaded(tmp_path: Path, serve_hub: ServeHub) -> None:
    names = [f"data/train-0000{i}-of-00003.parquet" for i in range(3)]
    parts = [[{"problem": f"Find {i}{j}.", "expected_answer": "1"} for j in range(3)] for i in range(3)]
    files = {name: _parquet([dict(row) for row in part]) for name, part in zip(names, parts, strict=True)}
    stand_in = serve_hub(mathematics.OPENMATH.repository, mathematics.OPENMATH.revision, files)
    loaded = _load("openmath", tmp_path, stand_in.address)
    assert loaded["questions"]["train"] == ["Find 00.", "Find 01.", "Find 02.", "Find 10."]  # 3 and 1 held out
    assert list(loaded["files"]) == names[:2]
    assert not any("/resolve/" in path and path.endswith(names[2]) for path in stand_in.asked)


@pytest.mark.nightly
def test_a_split_that_the_hub_does_not_have_is_named(tmp_path: Path, serve_hub: ServeHub) -> None:
    files = {"data/test-00000-of-00001.parquet": _parquet([{"problem": "Find 1.", "answer": "1"}])}
    stand_in = serve_hub("yentinglin/aime_2025", aime.AIME_2025.revision, files)
    done = _run("aime_2025", tmp_path, {"HF_ENDPOINT": stand_in.address})
    assert done.returncode == 1
    assert "(train) is not a split of the data set, which has test: use data.mirror instead." in done.stderr


def test_a_hub_without_the_pinned_commit_and_a_file_that_does_not_come_are_one_sentence(
    tmp_path: Path, serve_hub: ServeHub
) -> None:
    files = {"data/train-00000-of-00001.parquet": _parquet([{"problem": "Find 1.", "answer": "1"}])}
    stand_in = serve_hub("yentinglin/aime_2025", "f" * 40, files)
    done = _run("aime_2025", tmp_path, {"HF_ENDPOINT": stand_in.address})
    assert done.returncode == 1
    assert done.stderr == (
        f"{stand_in.address} has no commit {aime.AIME_2025.revision} of yentinglin/aime_2025: choose another task, or "
        "set data.mirror to a folder with a local copy.\n"
    )
    names = [f"main/{split}-00000-of-00001.parquet" for split in ("train", "test")]
    files = {"README.md": GSM8K_CARD} | {name: _parquet(_gsm8k_rows("any")) for name in names}
    stand_in = serve_hub("openai/gsm8k", gsm8k.SOURCE.revision, files)
    stand_in.refused = {*names}
    done = _run("gsm8k", tmp_path, {"HF_ENDPOINT": stand_in.address, "HF_TOKEN": "hf_secret"})
    assert done.returncode == 1
    assert "is not handed out (" in done.stderr
    assert "hf_secret" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_local_folder_that_shadows_the_data_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_urls", lambda source: {"train": ["/home/someone/openai/gsm8k/train.parquet"]})
    with pytest.raises(ValueError, match=r"gsm8k/train\.parquet is not a file of openai/gsm8k at commit e53f0488"):
        sources.hub_place(gsm8k.SOURCE)
