"""OpenAI's own client against the gateway: tools, forks, streams, and the tokens that are recorded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from packages.dagrpo_agents.tests.scripted_policy import CALCULATOR, ScriptedPolicy, session_with
from tests.rollout.scripted_chat import ids as tokens

from dagrpo.rollout.session import Session
from dagrpo_agents.gateway.server import Access, open_gateway

pytestmark = pytest.mark.anyio
QUESTION = {"role": "user", "content": "1+2=?"}


@asynccontextmanager
async def client_of(session: Session) -> AsyncIterator[tuple[Any, Access]]:
    """A client without types: its own take each message as one of many classes."""
    async with (
        asyncio.timeout(30),
        open_gateway() as gateway,
        gateway.admit(session) as access,
        AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0) as client,
    ):
        yield client, access


async def test_a_conversation_with_tools_is_one_sample_of_the_engines_own_tokens() -> None:
    policy = ScriptedPolicy('Wait.@calculator{"expression": "1+2"}', "3")
    session = session_with(policy, tools=(CALCULATOR,))
    async with client_of(session) as (client, _):
        messages: list[Any] = [QUESTION]
        first = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
        assert first.choices[0].finish_reason == "tool_calls"
        (call,) = first.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "1+2"}')
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
        second = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
        assert second.choices[0].finish_reason == "stop"
        answer: str | None = second.choices[0].message.content
        assert answer == "3"
    (sample,) = session.samples()
    first, second = policy.completions
    between = tokens("<tool>3\x03<assistant>")
    assert tuple(sample.token_ids) == (*session.prompt.token_ids, *first.token_ids, *between, *second.token_ids)
    assert tuple(sample.completion_ids) == (*first.token_ids, *second.token_ids)
    assert tuple(sample.completion_logprobs) == (*first.logprobs, *second.logprobs)


async def test_the_tokens_are_told_as_vllm_tells_them() -> None:
    policy = ScriptedPolicy("hi")
    session = session_with(policy)
    async with client_of(session) as (client, _):
        answer = await client.chat.completions.create(model="my-model", messages=[QUESTION], logprobs=True)
    assert answer.model == "my-model"
    assert tuple(answer.prompt_token_ids) == policy.asked[0][0] == session.prompt.token_ids
    assert answer.choices[0].token_ids == [ord("h"), ord("i"), 3]
    told = [(each.token, each.logprob) for each in answer.choices[0].logprobs.content]
    assert told == [("token_id:104", -0.125), ("token_id:105", -0.25), ("token_id:3", -0.375)]
    prompt = len(session.prompt.token_ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        prompt,
        3,
        prompt + 3,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_thoughts_are_beside_the_content_and_the_answer_is_known_again() -> None:
    session = session_with(ScriptedPolicy("<think>hm</think>\n3", "<think>cut off", "4"))
    async with client_of(session) as (client, _):
        messages: list[Any] = [QUESTION]
        told = []
        for _ in range(3):
            answer = (await client.chat.completions.create(model="p", messages=messages)).choices[0].message
            told.append((answer.content, getattr(answer, "reasoning_content", "")))
            messages += [{"role": "assistant", "content": answer.content}, QUESTION]
        assert told == [("3", "<think>hm</think>\n"), ("", "<think>cut off"), ("4", "")]
    assert len(session.samples()) == 1


async def test_going_back_to_an_earlier_turn_is_a_second_sample() -> None:
    policy = ScriptedPolicy("a", "b", "c", "d")
    session = session_with(policy)
    async with client_of(session) as (client, _):

        async def say(*said: str) -> str:
            roles = ["user", "assistant"] * len(said)
            messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
            answer = await client.chat.completions.create(model="policy", messages=messages)
            return str(answer.choices[0].message.content)

        assert await say("1+2=?") == "a"
        assert await say("1+2=?", "a", "sure?") == "b"
        assert await say("1+2=?", "a", "really?") == "c"
        assert await say("edited", "a", "sure?") == "d"
    assert [turn.parent and turn.parent.number for turn in session.turns] == [None, 0, 0, None]
    trained = [tuple(sample.completion_ids) for sample in session.samples()]
    assert trained == [tokens("a\x03b\x03"), tokens("c\x03"), tokens("d\x03")]


async def test_where_the_template_rewrites_what_was_said_another_sample_begins() -> None:
    session = session_with(ScriptedPolicy("a", "b"), rewrites=True)
    async with client_of(session) as (client, _):
        for messages in ([QUESTION], [QUESTION, {"role": "assistant", "content": "a"}, QUESTION]):
            await client.chat.completions.create(model="policy", messages=messages)
    assert [tuple(sample.completion_ids) for sample in session.samples()] == [tokens("a\x03"), tokens("b\x03")]


async def test_other_tools_are_another_prompt() -> None:
    policy = ScriptedPolicy("a", "b")
    session = session_with(policy)
    async with client_of(session) as (client, _):
        await client.chat.completions.create(model="policy", messages=[QUESTION])
        later = [QUESTION, {"role": "assistant", "content": "a"}, QUESTION]
        await client.chat.completions.create(model="policy", messages=later, tools=[CALCULATOR])
    assert len(session.samples()) == 2
    assert policy.asked[1][0][:7] == tokens("<tools>")


async def test_messages_are_known_again_however_clients_write_them() -> None:
    session = session_with(ScriptedPolicy('@calculator{"expression": "1+2", "exact": true}', "3"), tools=(CALCULATOR,))
    async with client_of(session) as (client, _):
        first = await client.chat.completions.create(model="policy", messages=[QUESTION], tools=[CALCULATOR])
        (call,) = first.choices[0].message.tool_calls
        function = {"name": "calculator", "arguments": '{"exact":true,"expression":"1+2"}'}
        question = {"role": "user", "content": [{"type": "text", "text": " 1+2"}, {"type": "text", "text": "=?\n"}]}
        asked = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        }
        told = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        await client.chat.completions.create(model="policy", messages=[question, asked, told], tools=[CALCULATOR])
    assert len(session.samples()) == 1


async def test_a_stream_says_the_same_in_pieces() -> None:
    policy = ScriptedPolicy('Two.@calculator{"expression": "1"}@calculator{"expression": "2"}')
    session = session_with(policy, tools=(CALCULATOR,))
    async with client_of(session) as (client, _):
        stream = await client.chat.completions.create(
            model="policy",
            messages=[QUESTION],
            tools=[CALCULATOR],
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
        )
        said, end, usage = [chunk async for chunk in stream]
    delta = said.choices[0].delta
    assert delta.content == "Two."
    assert [(call.index, call.function.arguments) for call in delta.tool_calls] == [
        (0, '{"expression": "1"}'),
        (1, '{"expression": "2"}'),
    ]
    assert tuple(said.choices[0].token_ids) == policy.completions[0].token_ids
    assert end.choices[0].finish_reason == "tool_calls"
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(policy.completions[0].token_ids)


async def test_a_program_can_ask_for_fewer_tokens_and_never_for_more() -> None:
    policy = ScriptedPolicy("abcdef", "abcdef", "abcdef")
    session = session_with(policy, new_tokens=4)
    async with client_of(session) as (client, _):
        limits: list[Any] = [{"max_tokens": 2}, {"max_completion_tokens": 3}, {"max_tokens": 100}]
        answers = [await client.chat.completions.create(model="p", messages=[QUESTION], **limit) for limit in limits]
        assert [answer.choices[0].finish_reason for answer in answers] == ["length"] * 3
    assert [most for _, most in policy.asked] == [2, 3, 4]


async def test_how_is_sampled_is_not_the_programs_choice_and_it_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = session_with(ScriptedPolicy("a", "b"))
    async with client_of(session) as (client, _):
        for _ in range(2):
            await client.chat.completions.create(model="p", messages=[QUESTION], temperature=0, seed=1)
    assert capsys.readouterr().err.count("seed, temperature") == 1


@pytest.mark.parametrize(("limits", "code"), [({"turns": 1}, "max_turns"), ({"limit": 30}, "max_tokens")])
async def test_an_attempt_that_is_over_is_told_so_in_openais_form(limits: dict[str, int], code: str) -> None:
    session = session_with(ScriptedPolicy("a" * 10, "b"), **limits)  # type: ignore[arg-type]
    async with client_of(session) as (client, _):
        await client.chat.completions.create(model="p", messages=[QUESTION])
        with pytest.raises(BadRequestError) as refused:
            later = [QUESTION, {"role": "assistant", "content": "a" * 10}, QUESTION]
            await client.chat.completions.create(model="p", messages=later)
        assert refused.value.code == code
    assert len(session.turns) == 1


async def test_requests_of_one_session_are_answered_one_after_the_other() -> None:
    session = session_with(ScriptedPolicy(*"abcde"))
    async with client_of(session) as (client, _):
        await asyncio.gather(*(client.chat.completions.create(model="p", messages=[QUESTION]) for _ in range(5)))
    assert [turn.number for turn in session.turns] == [0, 1, 2, 3, 4]


async def test_a_request_that_is_sent_again_gets_the_answer_that_was_lost() -> None:
    session = session_with(ScriptedPolicy("a", "b"))
    async with client_of(session) as (client, _):
        headers: list[dict[str, str]] = [{}, {"x-stainless-retry-count": "1"}, {}]
        answers = [
            await client.chat.completions.create(model="p", messages=[QUESTION], extra_headers=each) for each in headers
        ]
        assert [answer.choices[0].message.content for answer in answers] == ["a", "a", "b"]


async def test_the_models_are_listed() -> None:
    async with client_of(session_with(ScriptedPolicy())) as (client, _):
        assert [model.id for model in (await client.models.list()).data] == ["policy"]


async def test_calls_are_known_with_the_results_that_the_program_gave() -> None:
    answers = ('@calculator{"expression": "1"}@calculator{"expression": }', '@clock{}@calculator{"expression": "2"}')
    session = session_with(ScriptedPolicy(*answers), tools=(CALCULATOR,))
    async with client_of(session) as (client, access):
        first = await client.chat.completions.create(model="p", messages=[QUESTION], tools=[CALCULATOR])
        message = first.choices[0].message
        assert message.content == '@calculator{"expression": }'  # what cannot be called is not lost
        (call,) = message.tool_calls
        told = {"role": "tool", "tool_call_id": call.id, "content": "one"}
        later = [QUESTION, message.model_dump(exclude_none=True), told]
        await client.chat.completions.create(model="p", messages=later, tools=[CALCULATOR])
        assert [(call.turn, call.name, call.status, call.result) for call in access.conversation.calls()] == [
            (0, "calculator", "ok", "one"),
            (0, "", "undecodable", ""),
            (1, "clock", "unknown_tool", ""),
            (1, "calculator", "not_run", ""),
        ]
