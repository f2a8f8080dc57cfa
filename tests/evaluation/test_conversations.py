"""What an evaluation says of turns, calls and ends, counted by hand."""

from pathlib import Path

import pytest
from tests.rollout import conversations as made

from dagrpo.evaluation.config import Scoring
from dagrpo.evaluation.scoring import metrics_to_log, rows_to_show, score
from dagrpo.utils.tables import write_parquet

SCORING = Scoring(bootstrap_draws=100)


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    write_parquet(folder / "completions.parquet", made.table(rows))
    return folder / "completions.parquet"


@pytest.fixture
def completions(tmp_path: Path) -> Path:
    """Two problems; of the three attempts at each, the first is greedy."""
    rows = [made.with_tool(0, -1), made.mended(0, 0), made.alone(0, 1)]
    rows += [made.excluded(1, -1), made.corrected(1, 0), made.alone(1, 1)]
    return write(tmp_path, rows)


def test_turns_calls_and_ends_by_kind_of_attempt(completions: Path) -> None:
    scores, summary = score(completions, SCORING)
    assert summary["conversations"] == {
        "turns": {"greedy": 2.0, "sampled": (3 + 1 + 2 + 1) / 4},
        "calls": {"greedy": 1.0, "sampled": 2 / 4},
        "called": {"greedy": 1.0, "sampled": 1 / 4},
        "excluded": {"greedy": 1 / 2, "sampled": 0.0},
        "call_statuses": {"greedy": {"ok": 1.0}, "sampled": {"ok": 1 / 2, "undecodable": 1 / 2}},
        "stop_reasons": {
            "greedy": {"answered": 1 / 2, "excluded": 1 / 2},
            "sampled": {"answered": 3 / 4, "user_done": 1 / 4},
        },
    }
    logged, shown = metrics_to_log(summary), dict(rows_to_show(summary))
    assert (logged["turns_greedy"], logged["call_undecodable_sampled"], logged["stop_user_done_sampled"]) == (
        2,
        0.5,
        0.25,
    )
    assert shown["calls, sampled"] == "ok 50.0%, undecodable 50.0%"
    row = scores.to_pylist()[3]  # of the excluded one, which is unverifiable whatever it said
    assert row["completion"] == f"#### {row['ground_truth']}"
    assert (row["verdict"], row["extracted"], row["correct"]) == ("unverifiable", None, False)
    assert summary["unverifiable_rate"] == {"greedy": 1 / 2, "sampled": 0.0}
    assert summary["greedy"]["value"] == summary["accuracy_by_extractor"]["flexible"]["greedy"] == 1 / 2


def test_single_turns_without_calls_are_described_as_before(tmp_path: Path) -> None:
    _, summary = score(write(tmp_path, [made.alone(0, -1), made.alone(0, 0)]), SCORING)
    assert "conversations" not in summary
    assert not any("turns" in name for name in metrics_to_log(summary))


@pytest.mark.parametrize("stop_reason", ["program_failed", "excluded"])
def test_single_turns_of_which_one_went_wrong_are_told_with_their_ends(tmp_path: Path, stop_reason: str) -> None:
    failed = made.alone(0, 0) | {"stop_reason": stop_reason, "fault": "dead"}
    _, summary = score(write(tmp_path, [made.alone(0, -1), failed]), SCORING)
    shown = dict(rows_to_show(summary))
    assert (shown["ends, greedy"], shown["ends, sampled"]) == ("answered 100.0%", f"{stop_reason} 100.0%")
    assert shown["excluded attempts, sampled"] == ("1.000" if stop_reason == "excluded" else "0.000")
