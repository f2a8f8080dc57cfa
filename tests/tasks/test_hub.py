"""The hub path, against a stand-in on 127.0.0.1: the real `datasets` asks for the pinned commit and for nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrpo.tasks import aime, gsm8k
from dagrpo.tasks.hub import _files
from dagrpo.tasks.registry import TASKS

if TYPE_CHECKING:
    from tests.tasks.conftest import ServeHub

GSM8K_CARD = b"""---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train-*}]
---
"""
PREPARE = """
import sys
from pathlib import Path
from dagrpo.params.data import Data
from dagrpo.tasks.prepare import prepare
try:
    prepare(sys.argv[1], Path(sys.argv[2]), Data(max_train=3, max_test=2))
except ValueError as error:
    sys.exit(str(error))
"""


def _prepare(task: str, folder: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """In a process of its own: `datasets` reads its settings when it is imported."""
    command = [sys.executable, "-W", "ignore", "-c", PREPARE, task, str(folder)]
    environment = {**os.environ, "HF_HOME": str(folder.parent / "home"), **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _parquet(rows: list[dict[str, object]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def _gsm8k_rows(prefix: str) -> list[dict[str, object]]:
    return [{"question": f"{prefix} {i}", "answer": f"#### {i}"} for i in range(4)]


def test_every_task_from_the_hub_is_pinned_to_a_full_commit() -> None:
    assert set(TASKS) == {"arithmetic", "gsm8k", "aime_2024", "aime_2025"}
    for source in (gsm8k.SOURCE, aime.AIME_2024, aime.AIME_2025):
        assert len(source.revision) == 40
        assert set(source.revision) <= set("0123456789abcdef")


def test_gsm8k_comes_from_the_pinned_commit_and_its_main_configuration(tmp_path: Path, serve_hub: ServeHub) -> None:
    files = {
        "README.md": GSM8K_CARD,
        "main/train-00000-of-00001.parquet": _parquet(_gsm8k_rows("train")),
        "main/test-00000-of-00001.parquet": _parquet(_gsm8k_rows("test")),
        "socratic/train-00000-of-00001.parquet": _parquet(_gsm8k_rows("socratic")),
    }
    hub = serve_hub("openai/gsm8k", gsm8k.SOURCE.revision, files)
    done = _prepare("gsm8k", tmp_path / "gsm8k", {"HF_ENDPOINT": hub.address})
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "gsm8k/card.json").read_text())
    assert (card["origin"], card["revision"]) == ("hub", gsm8k.SOURCE.revision)
    assert card["raw"] == {name: hashlib.sha256(files[name]).hexdigest() for name in files if name.startswith("main/")}
    assert card["read"] == {"train": 4, "test": 4}
    assert pq.read_table(tmp_path / "gsm8k/train.parquet")["extra_info"][0]["question"].as_py() == "train 0"
    assert all(gsm8k.SOURCE.revision in path for path in hub.asked if "gsm8k" in path)
    assert not any("socratic/" in path for path in hub.asked)


def test_aime_reads_the_only_split_that_the_hub_has_as_its_test_split(tmp_path: Path, serve_hub: ServeHub) -> None:
    rows = [{"ID": f"2024-I-{i}", "Problem": f"Find {i}.", "Solution": "", "Answer": i} for i in range(3)]
    hub = serve_hub("Maxwell-Jia/AIME_2024", aime.AIME_2024.revision, {"aime_2024_problems.parquet": _parquet(rows)})
    done = _prepare("aime_2024", tmp_path / "aime_2024", {"HF_ENDPOINT": hub.address})
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "aime_2024/card.json").read_text())
    assert card["counts"] == {"train": 0, "test": 2}
    assert pq.read_table(tmp_path / "aime_2024/test.parquet")["reward_model"][1]["ground_truth"].as_py() == "1"


def test_a_hub_without_the_pinned_commit_is_an_error_and_not_another_commit(
    tmp_path: Path, serve_hub: ServeHub
) -> None:
    files = {"data/train-00000-of-00001.parquet": _parquet([{"problem": "Find 1.", "answer": "1"}])}
    hub = serve_hub("yentinglin/aime_2025", "f" * 40, files)
    done = _prepare("aime_2025", tmp_path / "aime_2025", {"HF_ENDPOINT": hub.address})
    assert done.returncode == 1
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith(
        f"yentinglin/aime_2025 at commit {aime.AIME_2025.revision} cannot be read from the hub ("
    )
    assert sentence.endswith("check the network, or set data.mirror to a folder with a local copy.")
    assert not (tmp_path / "aime_2025").exists()


def test_a_hub_out_of_reach_is_one_sentence(tmp_path: Path) -> None:
    done = _prepare("gsm8k", tmp_path / "gsm8k", {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"openai/gsm8k at commit {gsm8k.SOURCE.revision} cannot be read from the hub (")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_local_folder_that_shadows_the_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gsm8k/train\.parquet is not a file of openai/gsm8k at commit e53f0488"):
        _files(gsm8k.SOURCE, ["/home/someone/openai/gsm8k/train.parquet"])
