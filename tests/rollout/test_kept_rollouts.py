"""Rollouts that runtime.keep_rollouts leaves, and what a file of them costs to keep and to read."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.rollout import conversations

from dagrpo.rollout import attempts_file
from dagrpo.rollout.attempts_file import LONG, AttemptsFile, best_and_worst, kept_rollouts, write_attempts
from dagrpo.rollout.build_table import rounded
from dagrpo.rollout.config import KeepRollouts
from dagrpo.rollout.table import REWARDS, TRAINING_ROLLOUTS, with_texts
from dagrpo.utils.tables import read_parquet, write_parquet

ROWS = [conversations.with_tool(0), conversations.alone(0, 1), conversations.mended(1), conversations.alone(1, 1)]
TABLE = conversations.training_table(ROWS, [0.5, 1.0, 0.25, 0.25], 6)
EMPTY = {"prompt": "", "completion": "", "messages": "[]"}


def _kept(keep: KeepRollouts, step: int = 6) -> list[dict[str, Any]]:
    table = kept_rollouts(TABLE, keep, step)
    assert table.schema == TRAINING_ROLLOUTS
    return list(table.to_pylist())


def test_rewards_verdicts_and_lengths_are_always_kept() -> None:
    for row, whole in zip(_kept("none"), TABLE.to_pylist(), strict=True):
        short = {name: value for name, value in whole.items() if name not in LONG}
        assert row == short | {name: EMPTY.get(name, []) for name in LONG} | {"kept": "rewards"}


def test_the_best_and_the_worst_trajectory_of_each_prompt_are_whole() -> None:
    rows, whole = _kept("best_and_worst"), TABLE.to_pylist()
    assert [row["kept"] for row in rows] == ["all", "all", "all", "rewards"]
    assert rows[:3] == whole[:3]


def test_of_a_prompt_sampled_twice_in_a_row_each_group_is_kept_or_discarded_by_itself() -> None:
    table = pa.table(
        {
            "problem_index": [5, 5, 5, 5],
            "sample_index": [0, 1, 0, 1],
            "reward": [9.0, -9.0, 1.0, 0.0],
            "discarded": [True, True, False, False],
        }
    )
    assert best_and_worst(table).tolist() == [False, False, True, True]


def test_a_number_keeps_the_first_step_and_each_that_it_divides() -> None:
    assert [step for step in range(1, 8) if _kept(3, step) == TABLE.to_pylist()] == [1, 3, 6]
    assert with_texts(kept_rollouts(TABLE, 3, 2)).num_rows == 0


def test_rounded_rollouts_have_texts_and_tokens_but_no_exact_logprobs() -> None:
    exact = pa.array([[-0.123456] * len(row["rollout_logprobs"]) for row in ROWS], pa.list_(pa.float32()))
    place = TRAINING_ROLLOUTS.get_field_index("rollout_logprobs")
    table = kept_rollouts(TABLE.set_column(place, TRAINING_ROLLOUTS.field(place), exact), "rounded", 1)
    (row, *_) = table.to_pylist()
    assert row["rollout_logprobs"] == [-0.125] * len(ROWS[0]["rollout_logprobs"])
    assert (row["logprob_differences"], row["kept"]) == ([], "rounded")
    assert [row[name] for name in ("messages", "completion_ids", "samples")] == [
        ROWS[0][name] for name in ("messages", "completion_ids", "samples")
    ]


def test_rounding_loses_a_known_share_and_leaves_what_is_no_number() -> None:
    values = np.array([-1e-7, -0.3, -17.3, 0.0, np.inf, -np.inf, np.nan], np.float32)
    near = rounded(values, 5)
    assert np.abs(near[:3] / values[:3] - 1).max() <= 2**-5
    assert near[3:6].tolist() == values[3:6].tolist()
    assert np.isnan(near[6])


@cache
def _made_up(count: int, tokens: int = 1024) -> pa.Table:
    """A step with random tokens and logprobs, and words of tokens' numbers."""
    random, rows = np.random.default_rng(0), []
    for place in range(count):
        ids = np.minimum(random.zipf(1.3, tokens), 151_000).astype(np.int32)
        text = " ".join(f"{token % 997:x}" for token in ids)
        row = conversations.alone(place // 8, place % 8) | {"completion": f"{text} #### 1", "messages": "[]"}
        rows.append(
            row | {"completion_ids": ids, "rollout_logprobs": (-random.exponential(0.3, tokens)).astype(np.float32)}
        )
    table = conversations.training_table(rows, [float(place % 3) for place in range(count)])
    differences = [rounded(1e-3 * random.standard_normal(tokens).astype(np.float32), 5) for _ in range(count)]
    place = TRAINING_ROLLOUTS.get_field_index("logprob_differences")
    return table.set_column(place, TRAINING_ROLLOUTS.field(place), pa.array(differences, pa.list_(pa.float32())))


@pytest.mark.parametrize(("keep", "most"), [("all", 8.0), ("rounded", 4.0), ("best_and_worst", 2.5), ("none", 0.2)])
def test_a_token_takes_as_many_bytes_at_any_number_of_completions(
    keep: KeepRollouts, most: float, tmp_path: Path
) -> None:
    sizes = []
    for count in (16, 64, 256):
        write_attempts(tmp_path / "step.parquet", kept_rollouts(_made_up(count), keep, 2))
        sizes.append((tmp_path / "step.parquet").stat().st_size)
    for (count, size), (larger, larger_size) in pairwise(zip((16, 64, 256), sizes, strict=True)):
        assert (larger_size - size) / ((larger - count) * 1024) < most


def test_splitting_bytes_loses_nothing(tmp_path: Path) -> None:
    table = _made_up(8)
    write_parquet(tmp_path / "step.parquet", table)
    assert read_parquet(tmp_path / "step.parquet") == table


def test_some_rows_are_read_from_their_row_groups_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are: the tokens of one row group for each row that is shown, and no long column beside."""
    monkeypatch.setattr(attempts_file, "ROW_GROUP_BYTES", 100_000)
    read, table = list[int](), _made_up(128)
    whole = pq.ParquetFile.read_row_group

    def noting(file: pq.ParquetFile, group: int, *how: Any) -> pa.Table:
        read.append(group)
        return whole(file, group, *how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)
    for count in (8, 32, 128):
        write_attempts(tmp_path / "step.parquet", table.slice(0, count))
        file = AttemptsFile(tmp_path / "step.parquet")
        assert read == []
        assert set(file.short.column_names).isdisjoint(set(LONG) - {"calls"})
        places = [count - 1, 0, count - 1]
        rows = file.rows(places, without=())
        assert [row["completion_ids"] for row in rows] == table["completion_ids"].take(places).to_pylist()
        assert [row["sample_index"] for row in rows] == [7, 0, 7]
        assert len(read) == 2
        read.clear()


def test_a_shown_row_is_the_one_of_its_position_in_a_filtered_table(tmp_path: Path) -> None:
    write_attempts(tmp_path / "step.parquet", kept_rollouts(TABLE, "best_and_worst", 2))
    file = AttemptsFile(tmp_path / "step.parquet")
    left = file.short.filter(pa.array([False, True, True, True]))
    assert [row["kept"] for row in file.rows_of(left, [2, 0])] == [REWARDS, "all"]
    assert file.rows_of(left, [1])[0]["messages"] == ROWS[2]["messages"]
    assert file.rows_of(left, []) == []
