"""A policy that says what a script says, in a chat format in which every character is a token."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.rollout.problems import task_row

from dagrpo.chat.renderers import Message, ParsedAnswer, ParsedCall, ToolSchema
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion
from dagrpo.rollout.session import Session, SessionLimits

END = 1
CALL = re.compile(r"@(\w+)(\{[^@]*)")


class PlainChat:
    """`[user]1+2=?` and an end, `[assistant]`: and so on. A call is written `@name{"argument": 1}`."""

    def __init__(self, *, rewrites: bool = False) -> None:
        self.rewrites = rewrites  # the template drops what was said before a user's turn

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        begin = f"[tools]{json.dumps(list(tools), sort_keys=True)}\x01" if tools else ""
        text = begin + _rendered(messages)
        return text, tokens(text)

    def extension(
        self, prompt: Sequence[int], completion: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[int, ...] | None:
        if self.rewrites and any(message["role"] == "user" for message in new):
            return None
        close = () if completion and completion[-1] == END else (END,)
        return (*close, *tokens(_rendered(new)))

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        text = self.text(completion)
        known = {tool["function"]["name"] for tool in tools}
        calls = tuple(_call(match, known) for match in CALL.finditer(text))
        return ParsedAnswer(content=text.partition("@")[0] if calls else text, calls=calls)

    def text(self, completion: Sequence[int]) -> str:
        return "".join(chr(token) for token in completion if token != END)

    def message(self, answer: ParsedAnswer) -> Message:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in answer.calls
        ]
        return {"role": "assistant", "content": answer.content} | ({"tool_calls": calls} if calls else {})

    def spelled(self, message: Message) -> str:
        return str(message["content"])

    def require_tool_results(self, tools: Sequence[ToolSchema]) -> None:
        pass


def _rendered(messages: Sequence[Message]) -> str:
    return "".join(f"[{message['role']}]{message['content']}\x01" for message in messages) + "[assistant]"


def _call(match: re.Match[str], known: set[str]) -> ParsedCall:
    values: dict[str, Any] = {"name": match[1], "raw": match[0], "span": match.span()}
    try:
        values["arguments"] = json.loads(match[2])
    except ValueError:
        return ParsedCall(**values, arguments={}, status="undecodable", fault="no JSON")
    return ParsedCall(**values, status="ok" if match[1] in known else "unknown_tool")


def tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


class ScriptedPolicy:
    """Answers in order, whatever it is asked; remembers the prompts, and what it wrote after each."""

    def __init__(self, *answers: str) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.completions: list[Completion] = []
        self._answers = list(answers)

    async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
        self.asked.append((prompt, most))
        written = (*tokens(self._answers.pop(0)), END)[:most]
        completion = Completion(
            token_ids=written,
            logprobs=tuple(-0.125 * (place + 1) for place in range(len(written))),
            finish_reason="stop" if written[-1] == END else "length",
            weight_version="v",
            cached_tokens=len(self.asked) - 1,
        )
        self.completions.append(completion)
        return completion


def session_with(
    policy: ScriptedPolicy,
    *,
    tools: tuple[ToolSchema, ...] = (),
    turns: int = 8,
    limit: int = 10_000,
    new_tokens: int = 200,
    rewrites: bool = False,
    **example_changes: Any,
) -> Session:
    """An attempt at a problem whose prompt is the user's question."""
    chat = PlainChat(rewrites=rewrites)
    asked = task_row(**example_changes)
    text, token_ids = chat.prompt(asked.prompt, tools)
    return Session(
        prompt=Prompt(index=0, row=asked, text=text, token_ids=token_ids, tools=tools),
        chat=chat,
        complete=policy.complete,
        limits=SessionLimits(turns=turns, tokens=limit, new_tokens=new_tokens),
        seed=7,
        name="0/0",
    )


CALCULATOR: ToolSchema = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
