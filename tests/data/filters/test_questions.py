"""Ground truths that no verifier can read, conflicting questions, repeats, and a test split for what has none."""

import hashlib
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.filters.problems import gone, left, sieve, task_row, task_rows

from dagrpo.data.filters.questions import drop_conflicting, drop_repeated, drop_unreadable, hold_out
from dagrpo.data.filters.sieve import SCHEMA, Sieve, dropped_table


def test_an_unreadable_ground_truth_is_refused_with_task_row_field_and_remedy() -> None:
    found = sieve([("a", "18"), ("b", "eighteen")])
    with pytest.raises(ValueError, match=r"^task sums, train row 1, field `ground_truth` is 'eighteen'") as refused:
        drop_unreadable(found, "refuse")
    sentence = str(refused.value)
    assert sentence.endswith("correct the data, or set data.unreadable_answers to drop.")
    assert "verifier gsm8k" in sentence
    assert "\n" not in sentence


def test_every_row_of_a_question_with_different_answers_goes() -> None:
    found = sieve([("What is $x$?", "1"), ("other", "5"), ("what is x?", "2"), ("What is $x$?", "1")])
    assert drop_conflicting(found) == {"train": 1, "test": 0}
    assert left(found) == [1]
    detail = "row 0: 1; row 2: 2; row 3: 1"
    assert gone(found) == [("train", index, "conflicting answers", detail) for index in (0, 2, 3)]


@pytest.mark.parametrize(
    ("verifier", "truths", "conflicts"),
    [
        ("gsm8k", ["1000", "1,000", "1000.0"], 0),  # one number, written otherwise
        ("math", [r"\frac{1}{x}", r"x^{-1}"], 1),  # only math-verify could compare them
        ("math", [r"\frac{1}{x}", r"\frac{1}{x}"], 0),
    ],
)
def test_answers_conflict_when_they_are_different_or_cannot_be_compared_here(
    verifier: str, truths: list[str], conflicts: int
) -> None:
    found = Sieve({"train": [task_row("a", truth, index=i, verifier=verifier) for i, truth in enumerate(truths)]})
    assert drop_conflicting(found)["train"] == conflicts


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
    questions = {"train": ["a", "b"], "validation": ["b", "t"], "test": ["t"]}
    found = Sieve({name: task_rows(asked, name) for name, asked in questions.items()})
    drop_repeated(found)
    assert (left(found), left(found, "validation"), left(found, "test")) == ([0], [0, 1], [0])
    assert found.counts["train: question also in validation"] == 1
    figures = Sieve({"train": [task_row("Find x.", index=i, images=(bytes([i % 2]),)) for i in range(3)]})
    drop_repeated(figures)
    assert left(figures) == [0, 1], "the same text beside another figure is no repeat"


QUESTIONS = [f"what is {number}" for number in range(40)]


def _held_out(questions: list[str], count: int) -> set[str]:
    found = Sieve({"train": task_rows(questions)})
    hold_out(found, "test", count, "held_out")
    return {problem.question for problem in found.splits["test"]}


def test_the_questions_with_the_smallest_hash_are_held_out_in_their_order() -> None:
    found = sieve(QUESTIONS)
    hold_out(found, "test", 5, "held_out")
    by_hash = sorted(range(40), key=lambda number: hashlib.sha256(f"what is {number}".encode()).hexdigest())
    assert left(found, "test") == sorted(by_hash[:5])
    assert left(found) == sorted(by_hash[5:])
    assert {problem.split for problem in found.splits["test"]} == {"test"}
    assert found.dropped == []


@given(st.integers(0, 1000))
def test_the_choice_does_not_depend_on_the_order(seed: int) -> None:
    shuffled = random.Random(seed).sample(QUESTIONS, len(QUESTIONS))
    assert _held_out(shuffled, 7) == _held_out(QUESTIONS, 7)


@given(st.sampled_from(["a new one", "another", "What, a third?"]))
def test_a_row_more_replaces_at_most_one_held_out_problem(added: str) -> None:
    before, after = _held_out(QUESTIONS, 7), _held_out([added, *QUESTIONS], 7)
    assert len(before - after) <= 1


def test_something_must_be_left_to_train_on() -> None:
    with pytest.raises(ValueError, match=r"^data.held_out is 40, but only 40 problems are left .*lower data.held"):
        hold_out(sieve(QUESTIONS), "test", 40, "held_out")


def test_the_table_of_the_dropped_has_the_schema_also_when_it_is_empty_and_reasons_are_counted() -> None:
    assert dropped_table([]).schema.equals(SCHEMA)
    found = Sieve({"test": [task_row("q", "7", split="test", index=3)], "train": []})
    found.drop("train", "a reason", lambda problem: "a detail")
    found.drop("test", "a reason", lambda problem: "a detail")
    assert found.counts == {"train: a reason": 0, "test: a reason": 1}
    assert dropped_table(found.dropped).to_pylist() == [
        {"split": "test", "index": 3, "question": "q", "ground_truth": "7", "reason": "a reason", "detail": "a detail"}
    ]
