"""The sieve loses nothing, and says what it dropped."""

from tests.data.filters.problems import gone, left, sieve, task_row

from dagrpo.data.filters.sieve import SCHEMA, Sieve, dropped_table


def test_what_has_a_fault_goes_with_its_reason_and_the_rest_stays_in_order() -> None:
    found = sieve(["a", "b", "c"])
    found.drop("train", "is b", lambda problem: "really" if problem.question == "b" else None)
    assert left(found) == [0, 2]
    assert gone(found) == [("train", 1, "is b", "really")]
    assert found.counts == {"train: is b": 1}


def test_a_reason_that_nobody_had_shows_as_zero_and_counts_add_up() -> None:
    found = sieve(["a", "b"])
    found.drop("test", "is b", lambda problem: "really")
    found.drop("train", "is b", lambda problem: "really" if problem.question == "b" else None)
    found.drop("train", "is b", lambda problem: "really")
    assert found.counts == {"test: is b": 0, "train: is b": 2}


def test_train_and_test_are_always_there_and_other_splits_are_kept() -> None:
    assert list(Sieve({}).splits) == ["train", "test"]
    assert list(Sieve({"validation": [], "test": []}).splits) == ["train", "test", "validation"]


def test_the_table_of_the_dropped_has_the_schema_also_when_it_is_empty() -> None:
    assert dropped_table([]).schema.equals(SCHEMA)
    found = Sieve({"test": [task_row("q", "7", split="test", index=3)]})
    found.drop("test", "a reason", lambda problem: "a detail")
    assert dropped_table(found.dropped).to_pylist() == [
        {"split": "test", "index": 3, "question": "q", "ground_truth": "7", "reason": "a reason", "detail": "a detail"}
    ]
