"""What makes text of the token ids of a run's attempts."""

from dagrpo.checkpoints.token_text import Decode, decoder_of
from dagrpo.show.place import Place, tokenizer_file

REMEDY = "restore it, or leave out --tokens"


def decoder(place: Place) -> Decode | None:
    """Decodes tokens of the run's policy; None where no tokenizer is found. UserError: its file cannot be read."""
    path = tokenizer_file(place)
    return None if path is None else decoder_of(path, REMEDY)
