"""Repeats go, all but the first; test stays whole."""

from tests.data.filters.problems import gone, left, sieve, task_row, task_rows

from dagrpo.data.filters.questions import drop_repeated
from dagrpo.data.filters.sieve import Sieve


def test_exact_repeats_and_repeats_in_other_typing_are_counted_apart() -> None:
    found = sieve(["Find $x+1$.", "b", "Find $x+1$.", "find x + 1", "find x - 1"])
    drop_repeated(found)
    assert left(found) == [0, 1, 4]
    assert gone(found) == [
        ("train", 2, "repeated question", "as row 0"),
        ("train", 3, "repeated question, retyped", "as row 0"),
    ]
    assert found.counts["train: repeated question"] == found.counts["train: repeated question, retyped"] == 1


def test_a_train_problem_that_test_asks_too_goes_and_test_stays_whole() -> None:
    found = sieve(["a", "T ?", "u"], ["t?", "u", "v", "t?"])
    drop_repeated(found)
    assert (left(found), left(found, "test")) == ([0], [0, 1, 2])
    assert gone(found) == [
        ("test", 3, "repeated question", "as row 0"),
        ("train", 1, "question also in test", "as test row 0"),
        ("train", 2, "question also in test", "as test row 1"),
    ]


def test_a_train_problem_of_another_split_goes_too_and_that_split_may_share_with_test() -> None:
    splits = {
        name: task_rows(questions, name) for name, questions in (("train", ["a", "b"]), ("validation", ["b", "t"]))
    }
    found = Sieve(splits | {"test": task_rows(["t"], "test")})
    drop_repeated(found)
    assert (left(found), left(found, "validation"), left(found, "test")) == ([0], [0, 1], [0])
    assert found.counts["train: question also in validation"] == 1


def test_the_same_text_beside_another_figure_is_no_repeat() -> None:
    found = Sieve({"train": [task_row("Find x.", index=i, images=(bytes([i % 2]),)) for i in range(3)]})
    drop_repeated(found)
    assert left(found) == [0, 1]
