"""Parse and check chat completion requests in OpenAI's protocol.

Temperature, top_p and seed are ignored: section rollout has the sampling parameters. Options that would change the answer and are
not supported (several answers, stop texts, enforced formats, images) are refused instead of ignored.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from dagrpo.chat.renderers import Message, ToolSchema
from dagrpo.core.untrusted_json import read_json

IGNORED = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
ROLES = {"developer": "system"}  # the newer name of a role that chat templates know by its older one
MOST_ITEMS = 4096  # of each list of a request
Item = TypeVar("Item")


def _within_size(received: Any) -> Any:
    """Return what was received. Raises PydanticCustomError for a list that is too long, before any of it is looked at."""
    if isinstance(received, list) and len(received) > MOST_ITEMS:
        raise PydanticCustomError("too_long", f"List should have at most {MOST_ITEMS} items")
    return received


Items = Annotated[list[Item], Field(fail_fast=True), BeforeValidator(_within_size)]


class Refused(Exception):
    """Refusal of a request, sent as an HTTP error. Its message is for the program's author."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class _Received(BaseModel):
    """Part of a request. Unknown keys are ignored, as OpenAI's servers ignore those of other vendors."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Part(_Received):
    type: str
    text: str | None = None


class _Function(_Received):
    name: str
    arguments: str = ""


class _Call(_Received):
    id: str
    function: _Function


class _Message(_Received):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[_Part] | None = None
    reasoning_content: str | None = None
    tool_calls: Items[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Offered(_Received):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Received):
    type: Literal["function"]
    function: _Offered


class _StreamOptions(_Received):
    include_usage: bool | None = None


class _Form(_Received):
    type: str


class _Body(_Received):
    messages: Annotated[Items[_Message], Field(min_length=1)]
    model: str = "policy"
    tools: Items[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    n: int | None = None
    stop: str | Items[str] | None = None
    response_format: _Form | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Parsed request of a program."""

    messages: tuple[Message, ...]  # text alone; the arguments of calls as objects, in which chat templates take them
    tools: tuple[ToolSchema, ...]
    model: str  # the name that the answer bears; there is one policy, whatever it is called
    most: int | None  # tokens of the answer, where the program wants fewer than we allow
    logprobs: bool
    stream: bool
    usage_chunk: bool  # a stream's last chunk is to be the usage, and nothing else
    ignored: tuple[str, ...]  # keys of which section rollout decides
    characters: int  # of all texts
    again: bool  # the client has asked this before, and got no answer


def read_request(data: bytes, *, again: bool = False) -> ChatRequest:
    """Parse the request in a body. Raises Refused if it cannot be answered."""
    try:
        received = read_json(data)
        body = _Body.model_validate(received)
    except ValidationError as error:
        raise Refused(_sentence(error)) from error
    except ValueError as error:
        raise Refused(f"The body cannot be read: {error}.") from None
    _require_possible(body)
    offered = body.tool_choice != "none"
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    tools = tuple(received["tools"]) if body.tools and offered else ()
    return ChatRequest(
        messages=tuple(_plain(message, place) for place, message in enumerate(body.messages)),
        tools=tools,
        model=body.model,
        most=min(limits, default=None),
        logprobs=bool(body.logprobs),
        stream=bool(body.stream),
        usage_chunk=bool(body.stream_options and body.stream_options.include_usage),
        ignored=tuple(key for key in IGNORED if received.get(key) is not None),
        characters=len(json.dumps([received["messages"], tools], ensure_ascii=False)),
        again=again,
    )


def _sentence(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_input=False)
    first = next((each for each in errors if each["type"] == "too_long"), errors[0])
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "str")))
    return f"{place or 'The body'}: {first['msg']}."


def _require_possible(body: _Body) -> None:
    if body.n not in (None, 1):
        raise Refused(f"n is {body.n}: one answer is given at a time; ask again for another.")
    if body.stop:
        raise Refused("stop: the policy ends its turns itself, as it does in training; leave stop texts out.")
    if body.tool_choice not in (None, "auto", "none"):
        raise Refused("tool_choice: the policy is not made to call; only auto and none are possible.")
    if body.response_format is not None and body.response_format.type != "text":
        raise Refused(f"response_format {body.response_format.type}: the policy writes plain text.")


def _plain(message: _Message, place: int) -> Message:
    """Return the message with the keys that chat templates read, without empty ones."""
    plain: dict[str, Any] = {"role": ROLES.get(message.role, message.role), "content": _text(message.content, place)}
    if message.tool_calls:
        plain["tool_calls"] = [_call(call) for call in message.tool_calls]
    for key in ("reasoning_content", "tool_call_id", "name"):
        if (value := getattr(message, key)) is not None:
            plain[key] = value
    return plain


def _text(content: str | Items[_Part] | None, place: int) -> str:
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise Refused(f"messages.{place}.content: a part of type {part.type[:40]!r}: only text is supported.")
    return "".join(part.text or "" for part in content)


def _call(call: _Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _object(call)}}


def _object(call: _Call) -> Any:
    """Return the arguments as an object, as templates take them; unchanged if they are no object."""
    try:
        arguments = read_json(call.function.arguments)
    except ValueError:
        return call.function.arguments
    return arguments if isinstance(arguments, dict) else call.function.arguments
