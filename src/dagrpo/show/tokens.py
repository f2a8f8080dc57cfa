"""Token ids as text, special tokens included. Reads tokenizer.json alone: neither torch nor transformers is imported."""

from collections.abc import Sequence

from dagrpo.errors import UserError
from dagrpo.files import read_text
from dagrpo.show.place import Place, tokenizer_file
from dagrpo.show.terminal import Decode
from dagrpo.visible import one_line

REMEDY = "restore it, or leave out --tokens"


def decoder(place: Place) -> Decode | None:
    """Decodes tokens of the run's policy; None where no tokenizer is found. UserError: its file cannot be read."""
    path = tokenizer_file(place)
    if path is None:
        return None
    from tokenizers import Tokenizer

    text = read_text(path, REMEDY)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the border to a file of others: its reader in Rust raises nothing more exact
        raise UserError(f"{path} cannot be read as a tokenizer ({one_line(str(error), 200)}): {REMEDY}.") from None

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    return decode
