from hypothesis import given
from hypothesis import strategies as st

from dagrpo.trainer.batches.images import PaddedPictures, SequencePictures

files = st.lists(st.lists(st.binary(min_size=1, max_size=5), max_size=3), max_size=6)


def test_pictures_of_three_sequences_are_kept_once_each_in_the_order_in_which_they_are_shown() -> None:
    pictures = SequencePictures.of([(b"a",), (), (b"b", b"a")])
    assert pictures == SequencePictures(files=(b"a", b"b"), places=((0,), (), (1, 0)))
    assert pictures.padded(range(3)) == PaddedPictures(files=(b"a", b"b"), places=(0, 1, 0))
    assert pictures.padded(range(2, 3)) == PaddedPictures(files=(b"b", b"a"), places=(0, 1))
    assert pictures.padded(range(1, 2)) is None


def test_sequences_without_pictures_have_none() -> None:
    assert SequencePictures.of([]) is None
    assert SequencePictures.of([(), ()]) is None
    assert SequencePictures.from_tensors({}) is None


@given(files)
def test_every_sequence_shows_its_own_pictures_also_after_they_were_sent_to_other_ranks(
    drawn: list[list[bytes]],
) -> None:
    pictures = SequencePictures.of(drawn)
    if pictures is None:
        assert not any(drawn)
        return
    assert SequencePictures.from_tensors(pictures.tensors()) == pictures
    for row, own in enumerate(drawn):
        padded = pictures.padded(range(row, row + 1))
        assert [padded.files[place] for place in padded.places] == own if padded else not own
