"""A policy that says what a script says, in a chat format in which every character is a token."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.rollout.problems import task_row
from tests.rollout.scripted_chat import END, ScriptedChat, ids

from dagrpo.chat.renderers import Message, ParsedAnswer, ToolSchema
from dagrpo.core.trajectory import Prompt
from dagrpo.core.types import Completion
from dagrpo.rollout.session import Session, SessionLimits


class PlainChat(ScriptedChat):
    """Also writes into a prompt what tools there are, and tells a call of any other."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, tuple[int, ...]]:
        begin = f"<tools>{json.dumps(list(tools), sort_keys=True)}{END}" if tools else ""
        text = begin + super().prompt(messages, ())[0]
        return text, ids(text)

    def parse(self, prompt: Sequence[int], completion: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedAnswer:
        answer, known = super().parse(prompt, completion, tools), {tool["function"]["name"] for tool in tools}
        calls = (
            replace(call, status="unknown_tool") if call.status == "ok" and call.name not in known else call
            for call in answer.calls
        )
        return replace(answer, calls=tuple(calls))


class ScriptedPolicy:
    """Answers in order, whatever it is asked; remembers the prompts, and what it wrote after each."""

    def __init__(self, *answers: str) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.completions: list[Completion] = []
        self._answers = list(answers)

    async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
        self.asked.append((prompt, most))
        written = ids(self._answers.pop(0) + END)[:most]
        completion = Completion(
            token_ids=written,
            logprobs=tuple(-0.125 * (place + 1) for place in range(len(written))),
            finish_reason="stop" if written[-1] == ord(END) else "length",
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
