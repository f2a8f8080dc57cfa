"""Decoder of the token ids of a run's attempts."""

from dagrpo.checkpoints.token_text import Decode, decoder_of
from dagrpo.cli.show.place import Place, tokenizer_file

REMEDY = "restore it, or leave out --tokens"


def decoder(place: Place) -> Decode | None:
    """Return a decoder for the run's policy; None if no tokenizer is found. Raises UserError if its file cannot be read."""
    path = tokenizer_file(place)
    return None if path is None else decoder_of(path, REMEDY)
