"""Token ids as text, special tokens included.

Reads tokenizer.json alone: neither torch nor transformers is imported.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.core.escape import one_line
from dagrpo.utils.files import read_text

Decode = Callable[[Sequence[int]], str]


def decoder_of(path: Path, remedy: str) -> Decode:
    """Return a decoder of tokens for a tokenizer.json. Raises UserError naming the file, and the remedy, if it cannot be read."""
    from tokenizers import Tokenizer

    text = read_text(path, remedy)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the border to a file of others: its reader in Rust raises nothing more exact
        raise UserError(f"{path} cannot be read as a tokenizer ({one_line(str(error), 200)}): {remedy}.") from None

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    return decode
