from hypothesis import given
from hypothesis import strategies as st

from dagrpo.core.image_tokens import before_pictures, collapsed, picture_lengths, with_lengths
from dagrpo.core.types import PictureTokens

TOKENS = PictureTokens(image=7, video=8, start=5, end=6)


def test_a_number_of_lengths_that_is_not_that_of_the_placeholders_fits_nothing() -> None:
    assert with_lengths((1, 7), TOKENS, ()) is None
    assert with_lengths((1, 7), TOKENS, (2, 2)) is None
    assert with_lengths((1, 7, 8), TOKENS, (2,)) is None, "there are no videos"


def test_the_first_token_of_a_picture_or_a_video_is_found() -> None:
    assert before_pictures((1, 2, 8, 7), TOKENS) == 2
    assert before_pictures((1, 5, 6), TOKENS) == 1, "with the mark before it"
    assert before_pictures((1, 6), TOKENS) == 2
    assert before_pictures((), TOKENS) == 0


@given(st.lists(st.integers(0, 4) | st.integers(1, 9).map(lambda length: -length), max_size=12))
def test_collapsing_and_expanding_undo_each_other(parts: list[int]) -> None:
    """A negative part is a picture of so many tokens, between the marks of its start and its end."""
    token_ids = tuple(token for part in parts for token in ((5, *[7] * -part, 6) if part < 0 else (part,)))
    lengths = picture_lengths(token_ids, TOKENS)
    assert lengths == tuple(-part for part in parts if part < 0)
    assert with_lengths(collapsed(token_ids, TOKENS), TOKENS, lengths) == token_ids
