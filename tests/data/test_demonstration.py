"""Demonstrations survive their column, and a sequence of turns that no rollout has is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.errors import UserError
from dagrpo.data.demonstration import answer_message, call_message, demonstration_of, demonstration_text, result_message

TEXT = st.text(st.characters(codec="utf-8"))


@given(TEXT, TEXT, TEXT, st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.booleans())))
def test_any_demonstration_survives_its_column(
    name: str, answer: str, final: str, arguments: dict[str, str | int | bool]
) -> None:
    messages = (call_message(name, arguments), result_message(answer), answer_message(final))
    assert demonstration_of(demonstration_text(messages), "here") == messages


def test_none_is_an_empty_list() -> None:
    assert demonstration_text(()) == "[]"
    assert demonstration_of("[]", "here") == ()


@pytest.mark.parametrize("roles", [["assistant", "tool"], ["tool", "assistant"], ["assistant", "assistant"], ["user"]])
def test_the_policy_opens_and_closes_and_never_speaks_twice_in_a_row(roles: list[str]) -> None:
    text = json.dumps([{"role": role, "content": "x"} for role in roles])
    with pytest.raises(
        UserError, match=rf"here has the roles {', '.join(roles)}: it must begin and end with an assist"
    ):
        demonstration_of(text, "here")


@pytest.mark.parametrize("text", ["", "{}x", "[" * 100_000])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="here is not JSON: run the prepare stage again"):
        demonstration_of(text, "here")


@pytest.mark.parametrize("text", ["{}", "[[]]", '[{"role": "system", "content": "x"}]', '[{"role": "assistant"}]'])
def test_what_is_no_list_of_messages_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="here is not a list of messages of assistant, tool, user"):
        demonstration_of(text, "here")
