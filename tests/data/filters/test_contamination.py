"""Train problems that share words with test problems: planted ones are found, phrases of the trade are not."""

import pytest
from tests.data.filters.problems import gone, left, sieve, task_row, task_rows

from dagrpo.data.filters.contamination import COMMON, Contamination, Shared, check_contamination
from dagrpo.data.filters.sieve import Sieve

TWELVE = "one two three four five six seven eight nine ten eleven twelve"
THIRTEEN = f"{TWELVE} thirteen"
TRADE = "where m and n are relatively prime positive integers find the value of m n"  # 15 words


def _check(found: Sieve, *tests: str, length: int = 13, drop: bool = False) -> Contamination:
    overlaps = check_contamination(found, {"exam": task_rows(tests, "test")}, length, "drop" if drop else "report")
    return overlaps.report(found.splits["train"])


def test_a_planted_run_of_thirteen_words_is_found_and_twelve_are_not() -> None:
    found = sieve(["clean", f"Before: {THIRTEEN}, after!", f"x {TWELVE} y"])
    contamination = _check(found, "another", f"Now {THIRTEEN.upper()} then")
    assert contamination.train_problems == 1
    assert contamination.by_task == {"exam": 1}
    assert contamination.examples == {"exam": [Shared(train_index=1, test_task="exam", test_index=1, words=THIRTEEN)]}
    assert (left(found), gone(found)) == ([0, 1, 2], [])


def test_short_questions_are_compared_whole_and_with_their_operators() -> None:
    contamination = _check(sieve(["48+44=?", "48-44=?", "What is 48+44=?"]), "48 + 44 =?")
    assert [shared.train_index for shared in contamination.examples["exam"]] == [0]


def test_a_short_question_beside_another_figure_is_not_the_same() -> None:
    train = [task_row("Find x.", index=i, images=(bytes([i]),)) for i in range(2)]
    test = [task_row("Find x.", split="test", images=(bytes([1]),))]
    contamination = check_contamination(Sieve({"train": train}), {"figures": test}, 13, "report").report(train)
    assert [shared.train_index for shared in contamination.examples["figures"]] == [1]


@pytest.mark.parametrize(("problems", "counted"), [(COMMON, COMMON), (COMMON + 1, 0)])
def test_up_to_ten_train_problems_may_share_a_phrase_that_counts_and_more_are_reported(
    problems: int, counted: int
) -> None:
    contamination = _check(
        sieve([f"Number {i} is special {TRADE}" for i in range(problems)]), f"Something else {TRADE}"
    )
    assert contamination.by_task == {"exam": counted}
    assert contamination.common_phrases_only == {"exam": problems - counted}
    assert [shared.train_index for shared in contamination.examples["exam"]] == [*range(min(counted, 5))]


def test_a_rare_ending_does_not_make_a_phrase_of_the_trade_count() -> None:
    """More than half of the one shared run of thirteen words is common."""
    common = "and n are relatively prime positive integers find"
    rare = f"alpha beta gamma delta epsilon {common}"
    train = [rare, *(f"Number {i} {common}" for i in range(COMMON + 1))]
    assert _check(sieve(train), f"zeta {rare}").by_task == {"exam": 0}


def test_the_very_same_question_counts_however_common_its_phrases_are() -> None:
    train = [*(f"Number {i} is special {TRADE}" for i in range(COMMON + 1)), f"Something else {TRADE}"]
    contamination = _check(sieve(train), f"Something else {TRADE}")
    assert [shared.train_index for shared in contamination.examples["exam"]] == [COMMON + 1]


def test_tasks_are_counted_apart_and_a_problem_once_in_all() -> None:
    found = sieve([f"a {THIRTEEN}", "short one"])
    tests = {"exam": task_rows([f"b {THIRTEEN}"], "test"), "quiz": task_rows(["x", THIRTEEN, "Short one."], "test")}
    overlaps = check_contamination(found, tests, 13, "drop")
    contamination = overlaps.report(task_rows(["short"]))  # of two, one is left
    assert (contamination.by_task, contamination.left_by_task) == ({"exam": 1, "quiz": 2}, {"exam": 1, "quiz": 1})
    assert (contamination.train_problems, contamination.train_problems_left) == (2, 1)
    assert left(found) == []
    assert [detail for *_, detail in gone(found)] == [
        f"exam, test row 0: {THIRTEEN}",
        "quiz, test row 2: short one",
    ]
