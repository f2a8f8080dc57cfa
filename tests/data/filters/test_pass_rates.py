"""Pass rates joined by question, and train problems dropped by them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.data.filters.problems import gone, left, sieve, task_row

from dagrpo.data.filters.pass_rates import add_pass_rates, drop_by_pass_rate
from dagrpo.data.filters.sieve import Sieve
from dagrpo.utils.files import sha256_of
from dagrpo.utils.tables import write_parquet


def _file(path: Path, rates: Sequence[tuple[str, float | None]]) -> Path:
    questions = [hashlib.sha256(question.encode()).hexdigest() for question, _ in rates]
    table = pa.table({"question_sha256": questions, "pass_rate": pa.array([rate for _, rate in rates], pa.float64())})
    write_parquet(path, table)
    return path


def test_problems_get_the_pass_rate_of_their_question(tmp_path: Path) -> None:
    path = _file(tmp_path / "difficulty.parquet", [("a", 0.25), ("c", None), ("elsewhere", 1.0), ("t", 0.5)])
    found = sieve(["a", "b", "c"], ["t"])
    joined = add_pass_rates(found, path, must_match=True)
    assert [problem.pass_rate for problem in found.splits["train"]] == [0.25, None, None]
    assert [problem.pass_rate for problem in found.splits["test"]] == [0.5]
    assert (joined.known, joined.ambiguous, joined.sha256) == ({"train": 1, "test": 1}, 0, sha256_of(path))


def test_a_question_rated_twice_is_ambiguous_and_keeps_what_it_had(tmp_path: Path) -> None:
    path = _file(tmp_path / "difficulty.parquet", [("Find x.", 0.0), ("Find x.", 1.0), ("b", 0.5)])
    found = Sieve({"train": [task_row("Find x.", pass_rate=0.75), task_row("b", index=1)]})
    joined = add_pass_rates(found, path, must_match=True)
    assert [problem.pass_rate for problem in found.splits["train"]] == [0.75, 0.5]
    assert joined.ambiguous == 1


def test_only_train_problems_with_a_known_pass_rate_out_of_range_go() -> None:
    rates = [None, 0.0, 0.2, 0.5, 0.8, 1.0]
    train = [task_row(f"q{i}", index=i, pass_rate=rate) for i, rate in enumerate(rates)]
    test = [task_row(f"t{i}", split="test", index=i, pass_rate=rate) for i, rate in enumerate(rates)]
    found = Sieve({"train": train, "test": test})
    drop_by_pass_rate(found, 0.2, 0.8)
    assert (left(found), left(found, "test")) == ([0, 2, 3, 4], [0, 1, 2, 3, 4, 5])
    assert gone(found) == [
        ("train", 1, "pass rate below data.min_pass_rate", "pass rate 0"),
        ("train", 5, "pass rate above data.max_pass_rate", "pass rate 1"),
    ]


def test_a_file_that_matches_nothing_is_an_error_where_the_task_is_trained_on(tmp_path: Path) -> None:
    path = _file(tmp_path / "difficulty.parquet", [("elsewhere", 1.0)])
    with pytest.raises(ValueError, match=r"none of the 1 questions it rates is among .*or set it to null\.$"):
        add_pass_rates(sieve(["a"]), path, must_match=True)
    for harmless, must_match in ((sieve(["a"]), False), (sieve([], ["for evaluation only"]), True)):
        assert add_pass_rates(harmless, path, must_match=must_match).known == {"train": 0, "test": 0}


def test_a_file_that_is_missing_or_no_file_of_pass_rates_is_an_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", pa.table({"question_sha256": ["a"]}))
    faults = {
        tmp_path / "nowhere.parquet": r"^data.pass_rates is .*nowhere.parquet, which is not a file",
        tmp_path / "x.parquet": r"has no column `pass_rate`: name a difficulty.parquet",
        _file(
            tmp_path / "y.parquet", [("a", 0.5), ("b", 1.5)]
        ): r"row 1, field `pass_rate` is .*, not a number from 0 to 1",
        _file(
            tmp_path / "z.parquet", [("a", float("nan"))]
        ): r"row 0, field `pass_rate` is .*, not a number from 0 to 1",
    }
    for path, fault in faults.items():
        with pytest.raises(ValueError, match=fault):
            add_pass_rates(sieve(["a"]), path, must_match=True)
