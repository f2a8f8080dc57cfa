"""What holds for every verifier: no text makes it fail, all of the text is read, and in linear time."""

import itertools
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages.dagrpo_answers.tests.conftest import FACTOR, Growth
from tests.everyday import everyday

from dagrpo_answers.own_text import answer_text
from dagrpo_answers.verifier import Extractor, Verifier
from dagrpo_answers.verifiers import get_verifier, names

EXTRACTORS: tuple[Extractor, ...] = get_args(Extractor)
LINEAR = 3 * FACTOR  # a quadratic reading grows by 8 * 8

# verifier -> a right text in the form that it asks for, and its ground truth
RIGHT = {
    "gsm8k": ("9 * 2 = 18\n#### 18", "18"),
    "math_dapo": ("So it is 34.\nAnswer: 34", "34"),
    "math": ("So it is \\boxed{\\frac{1}{2}}.", "\\frac12"),
    "geo3k": ("<think>half</think> It is \\boxed{2\\sqrt{11}}", "2 \\sqrt { 11 }"),
    "exact_match": ("<answer>Paris</answer>", '["Paris"]'),
    "substring_match": ("<answer>It is Paris.</answer>", '["Paris"]'),
    "choice": ("So the answer is (C).", "C"),
    "countdown": ("<answer>(3 + 5) * 3</answer>", '{"numbers": [3, 3, 5], "target": 24}'),
}
# verifier -> a right text whose number has full-width digits and a unicode minus, and its ground truth
FOREIGN = {
    "gsm8k": ("#### \u2212\uff11\uff18", "-18"),
    "math_dapo": ("Answer\uff1a \\boxed{\u2212\uff11\uff18}", "-18"),
    "math": ("\\boxed{\u2212\uff11\uff18}", "-18"),
    "geo3k": ("\\boxed{\u2212\uff11\uff18}", "-18"),
    "exact_match": ("<answer>\u2212\uff11\uff18</answer>", '["-18"]'),
    "substring_match": ("<answer>it is \u2212\uff11\uff18 degrees</answer>", '["-18"]'),
    "countdown": ("<answer>\uff13\u2212\uff15</answer>", '{"numbers": [3, 5], "target": -2}'),
}
HOSTILE: dict[str, Callable[[int], str]] = {
    part: lambda length, part=part: part * (length // len(part))  # type: ignore[misc]
    for part in (
        "9", "1,", "1,111", "1.", ".", "\uff11", "#", "#### 1 ", "*", "-", "1e9", "\u0301\u0316", " ", "\n", "3 4 ",
        "answer", "answer:", "Answer: \n", "answer    ", "answer: **", "\\boxed", "\\boxed{", "\\boxed{}", "\\boxed{1}",
        "{", "}", "\\boxed{1}}{", "\\", "<answer>", "</answer>", "<answer></answer>", "<think>", "</think>", "$", "$1$",
        "\\frac", "\\frac{", "\\frac{1}{", "\\sqrt", "\\text{", "\\text{ a", "feet", "=", "x=", "(", ")", "1+", "1/",
        "an ", "\\left(", "\\(", "\\)", "\\[", "\u0130", "a\u0130nswer:", "<", "!", "</s>", "<a>", "\u00b2", "\u00bd",
        "\\boxed 3", "<tool_response>", "</tool_response>",
        "(a", "^{", "^", "_", "1 ",
        " 234", "\\text{or}", "<|im_start|>tool", "<|im_end|>", "\u00d7", "1\u00d7", "'", "thousand ", "|", "~", "%",
    )
}  # fmt: skip


def test_every_verifier_is_known_by_its_own_name() -> None:
    assert list(names()) == sorted([*RIGHT, "ifeval", "none", "reported", "unit_tests"])  # which read no value
    assert all(get_verifier(name).name == name for name in names())


def test_programs_and_instructions_can_be_right_in_part_and_have_no_votes() -> None:
    known = [get_verifier(name) for name in names()]
    assert [each.name for each in known if each.gives_shares] == ["ifeval", "unit_tests"]
    assert [each.name for each in known if not each.votes] == ["ifeval", "unit_tests"]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_text_in_the_right_form_is_right_and_formatted_also_before_many_characters(name: str) -> None:
    verifier, (text, truth) = get_verifier(name), RIGHT[name]
    verifier.check(truth)
    for characters in (0, 300, 3000):
        followed = text + "\n" + ("That was easy. " * characters)[:characters]
        assert verifier.equal(verifier.extract(followed, "strict") or "", truth) is True
        assert verifier.formatted(followed)
    assert not verifier.formatted("It is 34, or Paris.")


@pytest.mark.parametrize("name", FOREIGN)
def test_full_width_digits_and_a_unicode_minus_are_digits_and_a_minus(name: str) -> None:
    verifier, (text, truth) = get_verifier(name), FOREIGN[name]
    for extractor in EXTRACTORS:
        answer = verifier.extract(text, extractor) or ""
        assert verifier.equal(answer, truth) is True
        assert verifier.equal(answer, truth.replace("-", "")) is False


EVERY = list(itertools.product(RIGHT, HOSTILE))


@pytest.mark.parametrize(("name", "part"), everyday(EVERY[::13], EVERY))
def test_any_text_is_read_and_compared_in_linear_time(name: str, part: str, growth: Growth) -> None:
    verifier, truth = get_verifier(name), RIGHT[name][1]

    def judged(text: str) -> None:
        verifier.formatted(text)
        for extractor in EXTRACTORS:
            answer = verifier.extract(text, extractor)
            if answer is not None:
                verifier.equal(answer, truth)

    for before in ("", "#### ", "Answer: ", "<answer>", "<think></think>\\boxed{"):
        assert growth(judged, lambda length, before=before: before + HOSTILE[part](length)) < LINEAR  # type: ignore[misc]
    assert growth(judged, lambda length: f"\\boxed{{{HOSTILE[part](length)}}}") < LINEAR
    assert growth(judged, lambda length: f"<answer>{HOSTILE[part](length)}</answer>") < LINEAR


PIECES = st.sampled_from(
    ["#### ", "Answer:", "**", "\\boxed{", "}", "{", "<answer>", "</answer>", "<think>", "</think>", "$", "\\frac", "34", "-",
     ",", ".", "=", "(", ")", "/", "*", "+", " ", "\n", "\u2212", "\uff11", "\u0130", "\ud800", "\\text{", "or", "1/2", "\\",
     "[THINK]", "<|channel|>analysis", "Question: ", "答案：", "C", "\\pm", "\\mp", "\\{", "\\}", "\\mid", "x", "i", "<", "m+n=",
     "cm^2", "J/(",
     "\\begin{pmatrix}", "\\\\", "\\end{pmatrix}", "&", "\u221a", "\u00bd", "!", "^", "```python\n", "```", "\\$", "个", "\0"]
)  # fmt: skip
ANY_TEXT = st.text() | st.lists(PIECES, max_size=30).map("".join)


@settings(max_examples=1000)
@given(ANY_TEXT, ANY_TEXT, st.sampled_from(sorted(RIGHT)), st.sampled_from(EXTRACTORS))
def test_no_text_makes_a_verifier_fail(text: str, other: str, name: str, extractor: Extractor) -> None:
    verifier = get_verifier(name)
    assert verifier.formatted(text) in (True, False)
    for read in (
        text,
        answer_text(text),
        f"\\boxed{{{other}}}\nAnswer: {other}\n<answer>{other}</answer>\n#### {other}",
    ):
        answer = verifier.extract(read, extractor)
        if answer is not None:
            assert answer
            assert verifier.equal(answer, RIGHT[name][1]) in (True, False, None)


@given(ANY_TEXT, st.sampled_from(sorted(RIGHT)))
def test_a_strict_answer_is_the_flexible_one_too_unless_any_number_will_do(text: str, name: str) -> None:
    verifier = get_verifier(name)
    strict = verifier.extract(text, "strict")
    if strict is not None and name != "gsm8k":
        assert verifier.extract(text, "flexible") == strict


@given(ANY_TEXT, st.sampled_from(["gsm8k", "exact_match", "substring_match", "countdown"]))
def test_any_ground_truth_is_accepted_or_refused_in_one_sentence(text: str, name: str) -> None:
    complaint = _complaint(get_verifier(name), text)
    assert complaint.endswith(".")
    assert "\n" not in complaint


def _complaint(verifier: Verifier, ground_truth: str) -> str:
    try:
        verifier.check(ground_truth)
    except ValueError as error:
        return str(error)
    return "none."
