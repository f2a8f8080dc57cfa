"""The policy's own part of a flat text.

A completion in a user's file may hold a whole conversation, with the marks of a chat template: an answer in a tool's echo is not the
policy's. (In a trajectory the parts are separate.)
"""

import re

_NAMES = (
    "tool_response tool_responses tool_result tool_results tool_output tool_call tool_calls function_results function_result "
    "function_response function_calls information interpreter observation observations result results output search_results "
    "code_output execution_output execution_result execute_result python_output stdout documents search_result tool tool-response ipython"
)
_ROLES = "(?:tool|user|system|ipython|function|environment|observation)"
_OPENING = re.compile(
    rf"<(?P<name>{_NAMES.replace(' ', '|')})(?:\s[^<>]*+)?>|(?P<chatml><\|im_start\|>\s*+{_ROLES}\b)"
    rf"|(?P<llama><\|start_header_id\|>\s*+{_ROLES}\b)|(?P<glm><\|(?:observation|user|system|tool)\|>)"
    rf"|(?P<gemma><start_of_turn>\s*+{_ROLES}\b)|(?P<harmony><\|start\|>(?:functions|tool|user|system|developer)\b)"
    r"|(?P<mistral>\[TOOL_RESULTS\])|(?P<deepseek><\uff5ctool\u2581outputs?\u2581begin\uff5c>)|(?P<fence>```output\b)|(?P<instruction>\[INST\])",
    re.IGNORECASE,
)
_CLOSINGS = {
    "chatml": "<|im_end|>",
    "llama": "<|eot_id|>",
    "glm": "<|assistant|>",
    "gemma": "<end_of_turn>",
    "harmony": "<|end|>",
    "mistral": "[/TOOL_RESULTS]",
    "deepseek": "outputs\u2581end\uff5c>",
    "fence": "```",
    "instruction": "[/INST]",
}
_QUOTE = "[\"'`]"
_THOUGHT_MARK = (  # of Qwen and DeepSeek, Seed, Mistral, Kimi, OpenThinker, Cohere, gpt-oss
    r"(?:(?i:</?(?:seed:)?(?:think(?:ing)?|thought|reasoning)>)|\[/?THINK\]|\u25c1/?think\u25b7|<\|(?:begin|end)_of_thought\|>"
    r"|<\|(?:START|END)_THINKING\|>|<\|channel\|>(?:analysis|commentary|final)[^<]*+(?:<\|message\|>)?)"
)
_THOUGHT = re.compile(rf"(?!(?<={_QUOTE}){_THOUGHT_MARK}{_QUOTE}){_THOUGHT_MARK}")
_THOUGHT_ENDS = re.compile("/|end|END|final")
_may_hold = re.compile(r"<[A-Za-z|\uff5c]").search  # all marks but two begin so; GSM8K's <<16-3=13>> do not


def own_text(text: str) -> str:
    """Return the policy's own text, in linear time. A part without a closing mark extends to the end.

    A part ends at the last closing mark before the next opening one, so that a result which holds such a mark itself does not
    end there.
    """
    if _may_hold(text) is None and "[" not in text and "`" not in text:
        return text
    own, position = [], 0
    opening = _OPENING.search(text)
    while opening:
        own.append(text[position : opening.start()])
        following = _OPENING.search(text, opening.end())
        limit = following.start() if following else len(text)
        closing = _closing(opening)
        end = text.rfind(closing, opening.end(), limit)
        position = limit if end < 0 else end + len(closing)
        opening = following
    return "\n".join([*own, text[position:]]) if own else text


def answer_text(text: str) -> str:
    """Return the policy's own text of a conversation without its thoughts, in linear time."""
    return without_thoughts(own_text(text))


def without_thoughts(text: str) -> str:
    """Return a text without its thoughts, in linear time; "" if it was cut off in one.

    A thought extends from `<think>`, or from the beginning where the prompt has opened it, to `</think>`; so with the marks of other
    families. Tags in quotes are ordinary text, such as a program's.
    """
    answer: list[str] = []
    start = 0
    thinking = False
    for tag in _THOUGHT.finditer(text):
        ends = _THOUGHT_ENDS.search(tag[0]) is not None
        if ends and not thinking:
            answer.clear()
        elif not thinking:
            answer.append(text[start : tag.start()])
        start, thinking = tag.end(), not ends
    return "" if thinking else "".join([*answer, text[start:]])


def opened_thought(prompt: str) -> str:
    """Return the mark of the thought in which a prompt ends; "" if it ends in none."""
    last = None
    for last in _THOUGHT.finditer(prompt):  # noqa: B007 (the last one)
        pass
    return last[0] if last and not prompt[last.end() :].strip() and not _THOUGHT_ENDS.search(last[0]) else ""


def _closing(opening: re.Match[str]) -> str:
    name = opening.lastgroup
    assert name is not None
    return _CLOSINGS.get(name) or f"</{opening.group('name')}>"
