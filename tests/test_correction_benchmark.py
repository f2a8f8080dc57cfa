"""benchmarks/correction.py on a made-up table of rollouts, computed by hand."""

import sys
from math import log
from pathlib import Path

import pyarrow as pa
import pytest
from benchmarks.correction import Recorded, correction_row, engine_row, main

from dagrpo.utils.tables import write_parquet

# The trainer finds the tokens of the two steps 1, 8 and 1/4 times as likely as the engine; one trajectory was left out.
STEPS = [
    {"rollout_logprobs": [[-3.0, -3.0], [-1.0]], "logprob_differences": [[0.0, log(8)], []]},
    {"rollout_logprobs": [[-1.0]], "logprob_differences": [[-log(4)]]},
]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for number, columns in enumerate(STEPS, start=1):
        write_parquet(tmp_path / f"runs/seed_0/rollouts/step_{number:05d}.parquet", pa.table(columns))
    return tmp_path


def test_trajectories_that_were_left_out_are_no_part_of_it(results: Path) -> None:
    recorded = Recorded.of(results)
    assert recorded.lengths == [2, 1]
    assert recorded.joined(2).lengths == [3]
    assert engine_row("run", recorded)[:5] == ["run", "3", "1.5", f"{(log(8) + log(4)) / 3:.3g}", f"{log(8):.3g}"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", ["1.0000", "1.0000", "0.000%", "0.000%"]),
        # 1, 2 and 1/4: a mean of 3.25 / 3, and 3.25^2 / (3 * 5.0625) of the samples
        ("token_truncated", ["1.0833", "0.6955", "33.333%", "0.000%"]),
        ("token_masked", ["0.3333", "0.3333", "0.000%", "66.667%"]),
        # 2, 2 and 1/4: 4.25 / 3 and 4.25^2 / (3 * 8.0625)
        ("sequence_truncated", ["1.4167", "0.7468", "66.667%", "0.000%"]),
        ("sequence_masked", ["0.0833", "0.3333", "0.000%", "66.667%"]),
    ],
)
def test_each_correction_has_the_row_computed_by_hand(results: Path, name: str, expected: list[str]) -> None:
    assert correction_row(name, Recorded.of(results)) == [name, *expected]


def test_joined_trajectories_share_the_weight_of_their_sequence(results: Path) -> None:
    """1 * 8 / 4 = 2 on all three tokens."""
    assert correction_row("sequence_masked", Recorded.of(results).joined(2))[1:] == [
        "2.0000",
        "1.0000",
        "0.000%",
        "0.000%",
    ]


def test_it_prints_both_tables(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["correction.py", str(results), "--join", "2"])
    main()
    printed = capsys.readouterr().out
    assert f"| {results} | 3 | 3.0 |" in printed
    assert "| sequence_masked | 2.0000 |" in printed


def test_a_folder_without_rollouts_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no rollouts"):
        Recorded.of(tmp_path)
