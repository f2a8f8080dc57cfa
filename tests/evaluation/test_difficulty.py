"""Pass rates by hand, and the split that carries them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagrpo.evaluation import difficulty
from dagrpo.evaluation.difficulty import Grading, Rating, pass_through, rate, ratings_of
from dagrpo.evaluation.sampling import SamplingRun
from dagrpo.files import read_parquet, sha256_of, write_parquet
from dagrpo.params.evaluation import Sampling
from dagrpo.params.runtime import Engine
from dagrpo.records import Example
from dagrpo.rollout.table import ROLLOUTS
from dagrpo.tasks.schema import from_table, to_table

GRADING = Grading(verifier="task", extractor="strict", verify_seconds=2.0)
TEXTS = (("#### 8", "#### 8.0", "#### 7", "8"), ("no", "#### 1", "#### 2", ""), ("#### 8",) * 4)


def _completions() -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "task": "t",
            "problem_index": problem,
            "sample_index": sample,
            "prompt": "p",
            "completion": text,
            "completion_ids": [1],
            "logprobs": [0.0],
            "finish_reason": "stop",
            "ground_truth": "8",
            "verifier": "gsm8k",
            "question": f"q{problem}",
            "sampling_seed": 1,
        }
        for problem, texts in enumerate(TEXTS)
        for sample, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)


def _split(folder: Path) -> Path:
    examples = [
        Example(
            task="t",
            split="train",
            index=index,
            prompt=({"role": "user", "content": f"q{index}"},),
            question=f"q{index}",
            answer="#### 8",
            ground_truth="8",
            data_source="made up",
        )
        for index in range(len(TEXTS))
    ]
    write_parquet(folder / "train.parquet", to_table(examples))
    return folder / "train.parquet"


def test_a_pass_rate_is_the_share_of_right_completions_of_a_problem() -> None:
    ratings = ratings_of(_completions(), 3, GRADING)
    assert [rating.pass_rate for rating in ratings] == [2 / 4, 0.0, 1.0]


def test_the_verifier_and_the_extractor_are_those_of_the_reward() -> None:
    flexible = ratings_of(_completions(), 3, Grading(verifier="task", extractor="flexible", verify_seconds=2.0))
    assert [rating.pass_rate for rating in flexible] == [3 / 4, 0.0, 1.0]
    boxed = ratings_of(_completions(), 3, Grading(verifier="math", extractor="strict", verify_seconds=2.0))
    assert [rating.pass_rate for rating in boxed] == [0.0, 0.0, 0.0]


def test_what_could_not_be_verified_counts_neither_for_nor_against() -> None:
    assert Rating(right=1, unverifiable=2, samples=4).pass_rate == 1 / 2
    assert Rating(right=0, unverifiable=4, samples=4).pass_rate is None


def test_the_rated_split_is_the_split_with_one_more_thing_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = _split(tmp_path)
    monkeypatch.setattr(difficulty, "sample", lambda run: _completions())
    run = SamplingRun(
        model=tmp_path,
        test_split=split,
        seed=0,
        sampling=Sampling(samples=4),
        engine=Engine(),
        dtype="float32",
        deterministic=True,
        server_log=tmp_path / "server.log",
    )
    rate(run, GRADING, tmp_path / "rated.parquet", tmp_path / "difficulty.parquet")
    rated = from_table(read_parquet(tmp_path / "rated.parquet"), tmp_path / "rated.parquet")
    assert [example.pass_rate for example in rated] == [0.5, 0.0, 1.0]
    unrated = read_parquet(split).drop_columns("pass_rate")
    assert read_parquet(tmp_path / "rated.parquet").drop_columns("pass_rate").equals(unrated)
    table = read_parquet(tmp_path / "difficulty.parquet")
    assert table.column("right").to_pylist() == [2, 0, 4]
    assert table.column("samples").to_pylist() == [4, 4, 4]


def test_without_samples_the_split_passes_through_byte_for_byte(tmp_path: Path) -> None:
    split = _split(tmp_path)
    pass_through(split, tmp_path / "rated/train.parquet", tmp_path / "rated/difficulty.parquet")
    assert sha256_of(tmp_path / "rated/train.parquet") == sha256_of(split)
    assert read_parquet(tmp_path / "rated/difficulty.parquet").num_rows == 0
