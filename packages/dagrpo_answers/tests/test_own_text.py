"""A conversation stored as flat text: what the policy wrote itself is graded, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers import Judge
from dagrpo_answers.judging import has_form
from dagrpo_answers.own_text import answer_text, own_text
from dagrpo_answers.verifiers import get_verifier

ECHOES = (
    "<tool_response>\n{}\n</tool_response>",
    "<tool_response name='calculator'>{}</tool_response>",
    "<|im_start|>tool\n{}<|im_end|>",
    "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>",
    "<|start_header_id|>ipython<|end_header_id|>\n\n{}<|eot_id|>",
    "[TOOL_RESULTS] {} [/TOOL_RESULTS]",
    "<information>{}</information>",
    "<interpreter>{}</interpreter>",
    "<result>{}</result>",
    "```output\n{}\n```",
    "<tool_call>{}</tool_call>",
    "<start_of_turn>user\n{}<end_of_turn>",
)
# verifier, a right answer in its form, its ground truth
ANSWERS = (
    ("gsm8k", "#### 18", "18"),
    ("math_dapo", "Answer: 18", "18"),
    ("math", "\\boxed{18}", "18"),
    ("exact_match", "<answer>18</answer>", '["18"]'),
    ("countdown", "<answer>9 + 9</answer>", '{"numbers": [9, 9], "target": 18}'),
)


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize(("verifier", "answer", "truth"), ANSWERS)
def test_an_answer_that_only_a_tool_gave_is_none(
    verifier: str, answer: str, truth: str, echo: str, judge: Judge
) -> None:
    own, told = f"Let me see.\n{answer}\nSo it is.", echo.format(answer)
    texts = [
        f"Let me see.\n{told}\nThat is it.",
        f"Let me see.\n{told}",
        told[: len(told) // 2 + len(answer)],
        f"{told}\n{own}",
    ]
    for extractor in ("strict", "flexible"):
        judged = judge.judge(texts, [truth] * 4, [verifier] * 4, extractor)
        assert [judgement.verdict == "right" for judgement in judged] == [False, False, False, True]


@pytest.mark.parametrize("echo", ECHOES)
def test_an_answer_before_a_tools_result_is_still_the_policys(echo: str) -> None:
    kept = own_text(f"#### 18\n{echo.format('#### 17')}")
    assert kept.startswith("#### 18\n")
    assert "17" not in kept


def test_a_result_that_holds_the_mark_of_its_own_end_ends_at_the_last_one() -> None:
    forged = "<tool_response>no</tool_response>\n#### 18\n</tool_response>"
    assert own_text(f"I ask. {forged} I see.") == "I ask. \n I see."
    assert own_text(f"{forged}mine{forged}yours") == "\nmine\nyours"


def test_the_form_is_looked_for_in_the_policys_own_text() -> None:
    assert not has_form(get_verifier("gsm8k"), "<tool_response>#### 18</tool_response>")


THOUGHTS = (
    ("<think>{wrong}</think>{right}", True),
    ("<think>\n{wrong}\n</think>\n\n{right}", True),
    ("{wrong}\n</think>\n\n{right}", True),  # the prompt has opened it
    ("<think></think>{right}", True),
    ("<THINK>{wrong}</Think>{right}", True),
    ("<think>{wrong}</think>{right}\n<think>{wrong}", False),
    ("<think>{wrong}</think>hm {wrong} </think>{right}", True),
    ("<think>{right}", False),
    ("Sure.\n<think>{right}", False),
    ("<think>{right}</think>", False),
    ("{right}</think>", False),
    ("<think>{right}</think>{wrong}", False),
)
MARKS = (  # of other families
    *(
        ("<thinking>", "</thinking>"),
        ("<thought>", "</thought>"),
        ("<reasoning>", "</reasoning>"),
        ("<seed:think>", "</seed:think>"),
    ),
    *(
        ("[THINK]", "[/THINK]"),
        ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)
DRAFTS = (
    *((name, right, right.replace("18", "17"), truth) for name, right, truth in ANSWERS[:4]),
    ("countdown", "<answer>9 + 9</answer>", "<answer>9 + 8</answer>", ANSWERS[4][2]),
    ("geo3k", "\\boxed{18}", "\\boxed{17}", "18"),
    ("substring_match", "<answer>18</answer>", "<answer>17</answer>", '["18"]'),
    ("choice", "The answer is (C).", "The answer is (B).", "C"),
    ("ifeval", "No comma here", "Okay, so", '[["punctuation:no_comma", {}]]'),
)


@pytest.mark.parametrize(("thought", "right"), THOUGHTS)
@pytest.mark.parametrize(("verifier", "answer", "draft", "truth"), DRAFTS)
def test_a_thought_is_no_answer(
    verifier: str, answer: str, draft: str, truth: str, thought: str, right: bool, judge: Judge
) -> None:
    for extractor in ("strict", "flexible"):
        (judged,) = judge.judge([thought.format(right=answer, wrong=draft)], [truth], [verifier], extractor)
        assert (judged.verdict == "right") is right


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_every_familys_thought_is_no_answer(opening: str, closing: str) -> None:
    assert answer_text(f"{opening}9{closing}8") == "8"
    assert answer_text(f"9{closing}8") == "8"
    assert answer_text(f"So: {opening}9") == answer_text(f"{opening}9{closing}") == ""
    assert answer_text(f'Write "{opening}" first.') == f'Write "{opening}" first.'


def test_what_gpt_oss_says_before_a_call_is_no_answer() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    assert answer_text(f"<|channel|>analysis<|message|>9<|end|><|start|>assistant{call}") == ""


def test_a_program_in_a_thought_is_none_and_one_that_writes_the_tag_stays_whole() -> None:
    program = "```python\nprint(input().split('</think>')[1])\n```"
    assert answer_text(f"<think>```python\nprint(2)\n```</think>\n{program}") == f"\n{program}"
    assert answer_text("<think>```python\nprint(2)\n```") == ""


@given(st.text(alphabet="<>abt|[]`/_16=3 \n"))
def test_a_text_without_such_marks_stays_as_it_is(text: str) -> None:
    assert own_text(text) == text


@given(
    st.lists(
        st.sampled_from(["<tool_response>", "</tool_response>", "<|im_start|>tool", "<|im_end|>", "x"]), max_size=12
    )
)
def test_what_is_kept_is_part_of_the_text_in_its_order(pieces: list[str]) -> None:
    text = "".join(pieces)
    kept = own_text(text)
    position = 0
    for part in kept.split("\n"):
        position = text.index(part, position) + len(part)
    assert own_text(kept) == kept or "</tool_response>" in kept
