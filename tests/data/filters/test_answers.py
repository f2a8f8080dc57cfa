"""Ground truths that no verifier can read, and questions that have more than one."""

from dataclasses import replace

import pytest
from tests.data.filters.problems import gone, left, sieve, task_row, task_rows

from dagrpo.data.filters.questions import drop_conflicting, drop_unreadable
from dagrpo.data.filters.sieve import Sieve


def test_an_unreadable_ground_truth_is_refused_with_task_row_field_and_remedy() -> None:
    found = sieve([("a", "18"), ("b", "eighteen")])
    with pytest.raises(ValueError, match=r"^task sums, train row 1, field `ground_truth` is 'eighteen'") as refused:
        drop_unreadable(found, "refuse")
    sentence = str(refused.value)
    assert sentence.endswith("correct the data, or set data.unreadable_answers to drop.")
    assert "verifier gsm8k" in sentence
    assert "\n" not in sentence


def test_an_unreadable_ground_truth_is_dropped_and_listed() -> None:
    found = sieve([("a", "18"), ("b", "eighteen")], [("c", "x y"), ("d", "1,000.5")])
    drop_unreadable(found, "drop")
    assert (left(found), left(found, "test")) == ([0], [1])
    assert [row[:3] for row in gone(found)] == [
        ("train", 1, "unreadable answer"),
        ("test", 0, "unreadable answer"),
    ]
    assert "'eighteen'" in found.dropped[0].detail


def test_readable_ground_truths_pass_in_both_modes() -> None:
    found = sieve([("a", "18"), ("b", "-3")])
    drop_unreadable(found, "refuse")
    drop_unreadable(found, "drop")
    assert left(found) == [0, 1]


def test_every_row_of_a_question_with_different_answers_goes() -> None:
    found = sieve([("What is $x$?", "1"), ("other", "5"), ("what is x?", "2"), ("What is $x$?", "1")])
    assert drop_conflicting(found) == {"train": 1, "test": 0}
    assert left(found) == [1]
    detail = "row 0: 1; row 2: 2; row 3: 1"
    assert gone(found) == [("train", index, "conflicting answers", detail) for index in (0, 2, 3)]


def test_the_same_number_written_otherwise_is_no_conflict() -> None:
    found = sieve([("a", "1000"), ("a", "1,000"), ("a", "1000.0")])
    assert drop_conflicting(found) == {"train": 0, "test": 0}
    assert left(found) == [0, 1, 2]


def test_answers_that_only_math_verify_could_compare_conflict_when_their_texts_differ() -> None:
    same = [task_row("a", truth, index=i, verifier="math") for i, truth in enumerate([r"\frac{1}{x}", r"x^{-1}"])]
    found = Sieve({"train": same})
    assert drop_conflicting(found)["train"] == 1
    repeated = [task_row("a", r"\frac{1}{x}", index=i, verifier="math") for i in range(2)]
    assert drop_conflicting(Sieve({"train": repeated}))["train"] == 0


def test_the_same_text_beside_another_figure_is_no_conflict() -> None:
    figures = [task_row("Find x.", str(i), index=i, images=(bytes([i]),)) for i in range(3)]
    found = Sieve({"train": figures})
    assert drop_conflicting(found)["train"] == 0
    assert left(found) == [0, 1, 2]


def test_a_conflict_between_train_and_test_leaves_test_whole() -> None:
    found = Sieve({"train": task_rows([("a", "1")]), "test": task_rows([("a", "2")], "test")})
    drop_conflicting(found)
    assert (left(found), left(found, "test")) == ([0], [0])


def of(verifier: str, answer: str, truth: str, split: str = "train", calls: bool = False) -> Sieve:
    """A sieve with one problem whose source answers so, at the end of a demonstration if it `calls`."""
    turns = ({"role": "assistant", "content": "I ask."}, {"role": "assistant", "content": answer}) if calls else ()
    row = replace(task_row("a", truth, split=split, verifier=verifier), answer=answer, demonstration=turns)
    return Sieve({split: [row]})


FITTING = [  # verifier, ground truth, a source's answer in its form, and one in another form
    ("gsm8k", "12", "He has 10 + 2.\n#### 12", "He has 12."),
    ("math_dapo", "12", "Answer: 12", "#### 12"),
    ("math", "\\frac{1}{2}", "Half: $\\boxed{\\dfrac12}$.", "Half: $\\frac{1}{2}$."),
    ("geo3k", "12", "<think>6 + 6</think>\\boxed{12}", "<think>\\boxed{12}</think>"),
    ("exact_match", '["Paris"]', "<answer>Paris</answer>", "Paris"),
    ("choice", "C", "The answer is (C).", "C"),
    ("countdown", '{"numbers": [9, 9], "target": 18}', "<answer>9 + 9</answer>", "9 + 9"),
    ("unit_tests", '{"inputs": [""], "outputs": ["1"]}', "```python\nprint(1)\n```", "print(1)"),
]


@pytest.mark.parametrize(("verifier", "truth", "right", "other"), FITTING)
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("calls", [False, True])
def test_a_sources_answer_is_in_the_form_that_its_verifier_reads(
    verifier: str, truth: str, right: str, other: str, split: str, calls: bool
) -> None:
    for answer in (right, ""):
        drop_unreadable(of(verifier, answer, truth, split, calls), "refuse")
    with pytest.raises(
        ValueError, match=r"field `answer` is .* correct the data, or set data.unreadable_answers to drop"
    ):
        drop_unreadable(of(verifier, other, truth, split, calls), "refuse")
    found = of(verifier, other, truth, split, calls)
    drop_unreadable(found, "drop")
    assert [row[2] for row in gone(found)] == ["unreadable answer"]
    assert found.counts[f"{split}: unreadable answer"] == 1


@pytest.mark.parametrize("verifier", ["none", "reported"])
def test_a_verifier_that_reads_no_text_asks_for_no_form(verifier: str) -> None:
    drop_unreadable(of(verifier, "Good morning!", "-"), "refuse")


@pytest.mark.parametrize(("verifier", "truth", "right"), [each[:3] for each in FITTING[:-1]])
def test_a_train_problem_whose_answer_is_another_than_its_ground_truth_goes(
    verifier: str, truth: str, right: str
) -> None:
    for old, new in (("12", "13"), ("Paris", "Rome"), ("(C)", "(D)"), ("9 + 9", "9 - 9")):
        wrong = right.replace(old, new)
        if wrong != right:
            train, test = of(verifier, wrong, truth), of(verifier, wrong, truth, "test")
            assert drop_conflicting(train) == drop_conflicting(test) == {"train": 0, "test": 0}
            assert [row[2] for row in gone(train)] == ["conflicting answers"]
            assert train.counts["train: conflicting answers"] == 1
            assert not gone(test)
    fitting = of(verifier, right, truth)
    drop_conflicting(fitting)
    assert not gone(fitting)


def test_a_sources_text_follows_its_instructions() -> None:
    truth = '[["punctuation:no_comma", {}]]'
    found = Sieve({"train": [of("ifeval", text, truth).splits["train"][0] for text in ("No comma.", "One, two.")]})
    drop_conflicting(found)
    assert len(left(found)) == 1
