"""Pass rates by hand, and the split that carries them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.problems import problem, task_row

from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params
from dagrpo.core.trajectory import TokenSample, Trajectory
from dagrpo.data.schema import from_table, to_table
from dagrpo.engine import sglang
from dagrpo.evaluation import difficulty, sampling
from dagrpo.evaluation.difficulty import Rating, rate, ratings_of
from dagrpo.evaluation.pass_rates import pass_through
from dagrpo.evaluation.sampling import SplitAttempts
from dagrpo.pipeline.declaration import Job, Shared
from dagrpo.pipeline.stages.difficulty import STAGE
from dagrpo.rewards.config import Reward
from dagrpo.rollout.config import Rollout, training_sampling
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import read_parquet, write_parquet

REWARD = Reward()
TEXTS = (("#### 8", "#### 8.0", "#### 7", "8"), ("no", "#### 1", "#### 2", ""), ("#### 8",) * 4)


def _trajectories() -> list[Trajectory]:
    sample = TokenSample(token_ids=(1, 2), loss_mask=(False, True), logprobs=(0.0, 0.0), weight_version="v")
    return [
        Trajectory(
            prompt=problem(index, ground_truth="8"),
            sample_index=attempt,
            sampling_seed=1,
            samples=(sample,),
            text=text,
            finish_reason="stop",
        )
        for index, texts in enumerate(TEXTS)
        for attempt, text in enumerate(texts)
    ]


def _split(folder: Path) -> Path:
    task_rows = [task_row(f"q{index}", index=index, ground_truth="8") for index in range(len(TEXTS))]
    write_parquet(folder / "train.parquet", to_table(task_rows))
    return folder / "train.parquet"


def test_a_pass_rate_is_the_share_of_right_completions_among_those_that_could_be_verified() -> None:
    assert [rating.pass_rate for rating in ratings_of(_trajectories(), 3, REWARD)] == [2 / 4, 0.0, 1.0]
    assert Rating(right=1, unverifiable=2, samples=4).pass_rate == 1 / 2
    assert Rating(right=0, unverifiable=4, samples=4).pass_rate is None


def test_the_rated_split_is_the_split_with_one_more_thing_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = _split(tmp_path)
    monkeypatch.setattr(difficulty, "attempt_split", lambda attempts, checkpoint: _trajectories())
    attempts = SplitAttempts(
        model=tmp_path,
        split=split,
        conversation=Rollout(),
        sampling=training_sampling(Rollout(), samples=4),
        seeds=(2000, 0),
        engine=sglang.Config(),
        dtype="float32",
        server_log=tmp_path / "server.log",
        agent_folder=tmp_path / "agent",
    )
    nothing: Any = None  # in place of a checkpoint
    rate(attempts, nothing, REWARD, tmp_path / "rated.parquet", tmp_path / "difficulty.parquet")
    rated = from_table(read_parquet(tmp_path / "rated.parquet"))
    assert [task_row.pass_rate for task_row in rated] == [0.5, 0.0, 1.0]
    unrated = read_parquet(split).drop_columns("pass_rate")
    assert read_parquet(tmp_path / "rated.parquet").drop_columns("pass_rate").equals(unrated)
    table = read_parquet(tmp_path / "difficulty.parquet")
    assert table.column("right").to_pylist() == [2, 0, 4]
    assert table.column("samples").to_pylist() == [4, 4, 4]


def test_the_tasks_of_a_mixture_are_rated_one_after_the_other_by_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_for = list[Path]()

    @contextmanager
    def opened(attempts: SplitAttempts) -> Iterator[str]:
        opened_for.append(attempts.split)
        yield "checkpoint"

    monkeypatch.setattr(sampling, "opened", opened)
    monkeypatch.setattr(difficulty, "attempt_split", lambda attempts, checkpoint: _trajectories())
    params = merged(Params().model_dump(), {"difficulty": {"samples": 4}})
    with Shared() as shared:
        for task in ("one", "other"):
            (tmp_path / task).mkdir()
            inputs = {"model": [tmp_path / "manifest.json"], "train": [_split(tmp_path / task)], "passages": [tmp_path]}
            outputs = {name: tmp_path / task / f"{name}.rated" for name in ("train", "pass_rates")}
            STAGE.work(
                Job(
                    stage="difficulty",
                    experiment="e",
                    overrides={},
                    seed=None,
                    inputs=inputs,
                    outputs=outputs,
                    params=params,
                    runtime=Runtime(),
                    threads=1,
                    state=tmp_path,
                    log=tmp_path / "x.log",
                    shared=shared,
                )
            )
            assert [row.pass_rate for row in from_table(read_parquet(outputs["train"]))] == [0.5, 0.0, 1.0]
    assert opened_for == [tmp_path / "one" / "train.parquet"]


def test_without_samples_the_split_passes_through_byte_for_byte(tmp_path: Path) -> None:
    split = _split(tmp_path)
    pass_through(split, tmp_path / "rated/train.parquet", tmp_path / "rated/difficulty.parquet")
    assert sha256_of(tmp_path / "rated/train.parquet") == sha256_of(split)
    assert read_parquet(tmp_path / "rated/difficulty.parquet").num_rows == 0
