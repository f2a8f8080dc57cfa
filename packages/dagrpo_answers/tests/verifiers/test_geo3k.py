"""Geometry3K: the form of thoughts and a box, which is the published one read in linear time."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dagrpo_answers.verifiers.geo3k import formatted

FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\\boxed{", "}", "{", "1", "\n", " "]), max_size=10)


@settings(max_examples=500)
@given(PIECES.map("".join))
def test_the_form_is_the_published_one(text: str) -> None:
    assert formatted(text) == (FORM.fullmatch(text) is not None)
