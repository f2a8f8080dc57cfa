r"""What a policy may write to be paid for two answers or for none, and honest spellings of one: by classes, over many numbers."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.conftest import Growth
from packages.dagrpo_answers.tests.notations import TWO

from dagrpo_answers import Judge
from dagrpo_answers.comparing import equal
from dagrpo_answers.forms import read
from dagrpo_answers.text_match import normalise
from dagrpo_answers.verifier import Extractor
from dagrpo_answers.verifiers import get_verifier

# The zeros of scripts with decimal digits of their own: Arabic, Persian, Devanagari, Bengali, Thai, full-width, bold.
ZEROS = (0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50, 0xFF10, 0x1D7CE)
INVISIBLE = ("\u200b", "\u200e", "\u200f", "\u2066", "\u202a", "\u00ad", "\ufe0f", "\ufeff", "\u2063")
BOXES_BESIDE_SOMETHING = (
    "\\boxed{N} or \\boxed{M}", "\\boxed{N}\\boxed{M}", "M \\boxed{N}", "\\boxed{N} M", "not \\boxed{N}", "M or \\boxed{N}",
    "\\boxed{N} is wrong", "maybe \\boxed{N}", "\\boxed{N}? or M?", "\\boxed{N}/M", "2\\boxed{N}", "-\\boxed{N}",
    "\\frac{1}{\\boxed{N}}", "\\boxed{N}^2", "> \\boxed{N}", "\\neq \\boxed{N}",
)  # fmt: skip
BOXES_IN_A_SENTENCE = (
    "$\\boxed{N}$", "**\\boxed{N}**", "The final answer is $\\boxed{N}$.", "x = \\boxed{N}", "\\boxed{N} dollars"
)  # fmt: skip
BOXES_IN_A_BOX = (
    "N\\text{ or }\\boxed{M}", "N \\boxed{M}", "\\boxed{N} \\boxed{M}", "\\boxed{N}, M", "\\text{not }\\boxed{N}",
    "-\\boxed{N}", "\\frac{1}{\\boxed{N}}", "\\neq\\boxed{N}", "\\boxed{N}M", "\\fbox{N} \\text{ or } M",
)  # fmt: skip
NOT_THE_FIRST_NUMBER = (
    "< N", "<= N", "<N", "N\u0305", "N\u0336", "N\u0301", "NOOO", "N\u041e", "N\u043e", "Nlll", "N e3", "N x3", "N (base 8)",
    "N in base eight", "N\ub9cc", "N\u0442\u044b\u0441", "N \u0442\u044b\u0441\u044f\u0447", "N mille", "N Tausend",
    "N (wait, actually M)", "N excluded", "N mod M", "N choose two", "N \u0661", "N\u0661", "N otherwise",
)  # fmt: skip
TAILS = (
    "M plus N", "M minus N", "M times N", "M mod N", "M choose N", "minus N", "negative N", "\u221a N", "\\sqrt N", "log N",
    "<del>N</del>", "<strike>N</strike>", "N and a half", "N and three quarters", "N point five", "N in base eight",
    "M e N", "M.5 E N", "\u2014N", "It is \u2014N", "it is **\u2014N**",
)  # fmt: skip
NEGATIVE_TAILS = ("x = - N", "Total: - N", "- - N", "Sum: \u2212 N", "x = -N", "$x = - N$")
LAST_NUMBERS = (
    "<think>hm</think>N", "<b>N</b>", "\u7b54\u6848\u662fN\u3002", "\u7b54\u6848\uff1aN", "It covers N cm^2.", "It covers N m\u00b2",
    "\u20b9N", "It costs N \u20bd.",
)  # fmt: skip
SAME_TEXTS = (
    ("Pa\u200bris", "Paris"), ("\u200eParis\u200f", "Paris"), ("Paris&nbsp;", "Paris"), ("AT&amp;T", "AT&T"), ("an egg", "egg"),
)  # fmt: skip
OTHER_TEXTS = (
    ("vitamin", "Vitamin A"), ("B", "A"), ("- 5", "5"), ("5\u20190", "50"), ("\u24655", "65"), ("C++", "C"), ("C#", "C"), ("5%", "5"),
    ("5 %", "5"),
)  # fmt: skip


def filled(form: str, numbers: tuple[int, int]) -> str:
    return form.replace("N", str(numbers[0])).replace("M", str(numbers[1]))


def answer_of(text: str, verifier: str, extractor: Extractor = "strict") -> str | None:
    return get_verifier(verifier).extract(text, extractor)


@given(number=st.integers(-(10**6), 10**6), zero=st.sampled_from(ZEROS), mark=st.sampled_from(INVISIBLE))
def test_digits_of_any_script_and_marks_that_show_nothing_are_read(number: int, zero: int, mark: str) -> None:
    digits = "".join(chr(zero + int(digit)) if digit.isdecimal() else digit for digit in str(number))
    for text in (digits, mark + digits, digits + mark, mark + str(number)):
        assert answer_of(f"#### {text}", "gsm8k") == str(number)
        assert equal(text, str(number)) is True
        assert equal(text, str(number + 1)) is False


@given(numbers=TWO, zero=st.sampled_from(ZEROS))
def test_digits_of_another_script_belong_to_the_number_before(numbers: tuple[int, int], zero: int) -> None:
    text = f"{numbers[0]}{chr(zero + 3)}"
    assert answer_of(f"#### {text}", "gsm8k") in (None, f"{numbers[0]}3")
    assert equal(text, str(numbers[0])) is False


@pytest.mark.parametrize("form", BOXES_BESIDE_SOMETHING)
@settings(max_examples=10)
@given(numbers=TWO)
def test_a_box_on_the_answer_line_is_no_answer_where_the_line_says_more(
    form: str, numbers: tuple[int, int], judge: Judge
) -> None:
    n, m = numbers
    assume(m != n**2 and n != m**2)  # the power and the quotient have these values, so that they are right
    truths = [str(number) for number in numbers]
    texts = [f"Answer: {filled(form, numbers)}"] * 2
    judged = judge.judge(texts, truths, ["math_dapo"] * 2, "strict")
    assert "right" not in [judgement.verdict for judgement in judged]


@pytest.mark.parametrize("form", BOXES_IN_A_SENTENCE)
@given(numbers=TWO)
def test_a_box_in_a_sentence_on_the_answer_line_is_the_answer(form: str, numbers: tuple[int, int]) -> None:
    assert answer_of(f"Answer: {filled(form, numbers)}", "math_dapo") == str(numbers[0])


@pytest.mark.parametrize("form", BOXES_IN_A_BOX)
@settings(max_examples=10)
@given(numbers=TWO)
def test_a_box_in_a_box_is_a_part_of_it(form: str, numbers: tuple[int, int], judge: Judge) -> None:
    text = f"\\boxed{{{filled(form, numbers)}}}"
    judged = judge.judge([text] * 2, [str(number) for number in numbers], ["math"] * 2, "strict")
    assert "right" not in [judgement.verdict for judgement in judged]


@given(numbers=TWO, depth=st.integers(1, 5))
def test_a_box_around_a_box_alone_says_the_same(numbers: tuple[int, int], depth: int) -> None:
    text = "\\boxed{" * depth + f"x = \\boxed{{{numbers[0]}}}" + "}" * depth
    assert read(answer_of(text, "math") or "").value == numbers[0]
    assert answer_of(f"\\boxed{{{numbers[1]} and never closed \\boxed{{{numbers[0]}}}", "math") == str(numbers[0])


@pytest.mark.parametrize("form", NOT_THE_FIRST_NUMBER)
@given(numbers=TWO)
def test_what_makes_another_number_of_the_first_one_is_no_answer_of_gsm8k(form: str, numbers: tuple[int, int]) -> None:
    assert answer_of(f"#### {filled(form, numbers)}", "gsm8k") != str(numbers[0])


@pytest.mark.parametrize("form", TAILS)
@given(numbers=TWO)
def test_flexible_reads_no_tail_of_words_that_calculate(form: str, numbers: tuple[int, int]) -> None:
    text = f"So {filled(form, numbers)}"
    assert answer_of(text, "gsm8k", "flexible") is None
    assert equal(answer_of(text, "math", "flexible") or "none", str(numbers[0])) is not True


@pytest.mark.parametrize("form", NEGATIVE_TAILS)
@given(numbers=TWO)
def test_a_minus_that_a_space_divides_from_its_number_belongs_to_it(form: str, numbers: tuple[int, int]) -> None:
    text = f"So {filled(form, numbers)}"
    assert answer_of(text, "gsm8k", "flexible") == str(-numbers[0])
    assert equal(answer_of(text, "math", "flexible") or "none", str(-numbers[0])) is True


@pytest.mark.parametrize("form", LAST_NUMBERS)
@given(numbers=TWO)
def test_flexible_reads_a_number_beside_tags_units_and_asian_words(form: str, numbers: tuple[int, int]) -> None:
    text = f"So {filled(form, numbers)}"
    assert answer_of(text, "gsm8k", "flexible") == str(numbers[0])


def test_texts_in_another_dress_are_the_same_and_others_are_not() -> None:
    assert [normalise(answer) == normalise(text) for answer, text in SAME_TEXTS] == [True] * len(SAME_TEXTS)
    assert [normalise(answer) == normalise(text) for answer, text in OTHER_TEXTS] == [False] * len(OTHER_TEXTS)


@pytest.mark.parametrize(
    "repeated",
    [
        "<<1=1>>",
        "1<<1=",
        "\\boxed{1} or ",
        "x=1 or ",
        "\u6216\u4e00",
        "(two) ",
        "m\u00b2 ",
        "cm^2 ",
        "&#1",
        "&#x",
        "\\boxed{",
        "\\boxed{\\boxed{1}} ",
        "<b>",
        "\u7b54\u68481",
        "\u0301",
    ],
)
def test_no_long_text_makes_a_reading_fail_or_grow_faster_than_its_length(repeated: str, growth: Growth) -> None:
    def read_it(text: str) -> None:
        for verifier in ("gsm8k", "math", "math_dapo", "exact_match"):
            answer_of(f"Answer: {text}", verifier, "flexible")
        normalise(text)

    assert growth(read_it, lambda length: repeated * (length // len(repeated))) < 30
