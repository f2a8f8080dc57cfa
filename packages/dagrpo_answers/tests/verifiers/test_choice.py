"""Letters of options: a stated one counts, two do not."""

from hypothesis import given
from hypothesis import strategies as st

from dagrpo_answers.verifiers.choice import VERIFIER, extract


@given(st.text(alphabet="answer is:*_$()[]{}ABJ \n\\boxed", max_size=200))
def test_what_is_found_is_a_letter(text: str) -> None:
    for extractor in ("strict", "flexible", "exact"):
        letter = extract(text, extractor)
        assert letter is None or VERIFIER.equal(letter, letter)
