"""Whatever a policy writes, nothing of it acts on a terminal or a page, and nothing hides."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.escape import HIDDEN, INVISIBLE, one_line, sentence, visible


def test_text_that_hides_or_reorders_is_made_visible() -> None:
    assert visible("a\u202eb\x00c\n\td\u200b\ud800") == "a\\u202eb\\u0000c\n\td\\u200b\\ud800"


def test_escape_sequences_lose_what_starts_them() -> None:
    assert visible("\x1b[2J\x1b]0;title\x07\x9b31m\r") == "\\u001b[2J\\u001b]0;title\\u0007\\u009b31m\\u000d"


def test_letters_and_selectors_that_nobody_sees_are_made_visible_and_emoji_stay() -> None:
    assert visible("a\u3164b\u2800c\U000e0101") == "a\\u3164b\\u2800c\\ue0101"
    assert visible("\u2764\ufe0f") == "\u2764\ufe0f"
    assert visible("\u2764\ufe0f\ufe0e\ufe0f") == "\u2764\ufe0f\\ufe0e\\ufe0f"


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert visible("x" * 1244, 10) == "x" * 10 + " [... 1,234 more characters]"
    assert visible("x" * 10, 10) == "x" * 10


def test_one_line_is_one_line() -> None:
    assert one_line("a\n\n  b\tc", 10) == "a b c"
    assert one_line("abcdefghijk", 5) == "abcd\N{HORIZONTAL ELLIPSIS}"
    assert one_line("a" + " " * 100, 5) == "a\N{HORIZONTAL ELLIPSIS}"


@given(st.text(st.characters()), st.integers(1, 40))
def test_no_text_gets_through_with_a_character_that_is_not_seen(text: str, longest: int) -> None:
    for shown in (visible(text), visible(text, longest), one_line(text, longest)):
        assert not {unicodedata.category(character) for character in shown if character not in "\n\t"} & HIDDEN
        assert not any(map(INVISIBLE.search, shown.split("\n")))
    assert "\n" not in one_line(text, longest)
    assert len(one_line(text, longest)) <= longest


@pytest.mark.parametrize("before", [70, 90, 235, 240, 700])
def test_a_secret_that_a_cut_divides_is_redacted_whole(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_X_API_KEY", "sk-" + "SECRET" * 8)
    text = "x" * before + " sk-" + "SECRET" * 8 + " " + "y" * 700
    assert "SECRET" not in one_line(text, before + 20) + sentence(text)
