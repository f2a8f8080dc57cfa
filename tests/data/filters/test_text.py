"""When two questions are the same: typing is forgiven, mathematics never."""

import re
import unicodedata
from collections import defaultdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.data.filters.problems import task_row

from dagrpo.data.config import Data
from dagrpo.data.filters.text import exact_identity, identity, normalised
from dagrpo.data.task import get_task

SAME = [
    ("Find  x.", "find x"), ("Find $x$.", "Find x"), (r"Let \(a, b\) be", "Let $a,b$ be"), ("What is $5$ ?", "What is 5?"),
    ("If $x + 1 = 2$, find $x$.", "If $x+1=2$, find $x.$"), ('a "word"', "a ``word''"), ("the inﬁnite grid", "the infinite grid"),
    ("f′(x) − 1", "f'(x) - 1"), ("10²", "10^2"), ("a₁", "a_1"), ("<image>Find x.", "Find x"),
    ("that satisfy:\n\\[x\\]", "that satisfy $x$"),
]  # fmt: skip
OTHER = [
    ("x-1", "x+1"), ("x-1", "x 1"), ("x*y", "x/y"), ("x<1", "x>1"), ("3.5", "35"), ("3.5", "3 5"), ("1, 2", "12"),
    ("1,000", "1000"), ("1, -2", "1-2"), ("5!", "5"), ("x^2", "x2"), ("x_1", "x1"), ("f'(x)", "f(x)"), ("|x|", "x"),
    ("10²", "102"), ("1½", "11/2"), ("{1, 2}", "(1, 2)"), ("50%", "50"), ("x = -1", "x = 1"), ("12 3", "1 23"),
]  # fmt: skip


def test_typing_makes_no_other_question_and_another_number_or_operator_does() -> None:
    assert [pair for pair in SAME if normalised(pair[0]) != normalised(pair[1])] == []
    assert [pair for pair in OTHER if normalised(pair[0]) == normalised(pair[1])] == []


def test_the_normal_form_itself() -> None:
    assert normalised("Let $X+10.5$ be: \\(y\\).") == "let x + 10.5 be y"


@given(st.lists(st.sampled_from(["find", "12", "x", "+", "-", "=", "(", ")", "^", "!"]), min_size=1))
def test_white_space_between_tokens_does_not_matter(tokens: list[str]) -> None:
    assert normalised(" ".join(tokens)) == normalised("  \n".join(tokens)) == " ".join(tokens)


@given(st.text())
def test_any_text_has_a_normal_form_on_one_line(text: str) -> None:
    normal = normalised(text)
    assert normal == " ".join(normal.split())


def test_another_figure_makes_another_problem() -> None:
    one, other = task_row("Find x.", images=(b"one",)), task_row("find x", images=(b"other",))
    assert identity(one) != identity(other)
    assert identity(one) == identity(task_row("find x", images=(b"one",)))
    assert exact_identity(one) != exact_identity(task_row("find x", images=(b"one",)))


def test_real_questions_taken_for_the_same_have_the_same_digits_operators_and_letters(data_folder: Path) -> None:
    """An independent look at 17,917 questions: what the normal form dropped was neither."""
    groups = defaultdict(set)
    for problem in get_task("dapo").load(Data(mirror=str(data_folder))).splits["train"]:
        groups[identity(problem)].add(problem.question)
    repeated = [questions for questions in groups.values() if len(questions) > 1]
    assert len(repeated) > 500
    for questions in repeated:
        assert len({_mathematics(question) for question in questions}) == 1, questions


def _mathematics(question: str) -> tuple[str, str, str]:
    plain = unicodedata.normalize("NFKC", question).replace("−", "-").lower()
    letters = "".join(character for character in plain if character.isalpha())
    return letters, "".join(re.findall(r"[-+*/=<>^!|_%]", plain)), " ".join(re.findall(r"\d+", plain))
