"""Token ids as text, special tokens included. Reads tokenizer.json alone: neither torch nor transformers is imported."""

from collections.abc import Sequence

from dagrpo.show.place import Place, tokenizer_file
from dagrpo.show.terminal import Decode


def decoder(place: Place) -> Decode | None:
    """Decodes tokens of the run's policy; None where no tokenizer is found."""
    path = tokenizer_file(place)
    if path is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    return decode
