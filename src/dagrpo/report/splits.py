"""Pictures and kinds of problems, read from the splits.

Found by the row of a problem, because no table of attempts has them.
"""

import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from PIL import Image

from dagrpo.core.errors import UserError
from dagrpo.core.escape import visible
from dagrpo.data.images import rgb_file
from dagrpo.utils.tables import read_parquet

LONGEST_SIDE = 256  # pixels
COLOURS = 64
MOST_CHARACTERS = 400_000  # of all pictures on a page, encoded
TRAINING = "train"  # in place of a test split's task
AGAIN = "run the stage that makes it again"
FIELDS = ("ability", "data_source")  # of the row contract; the first that distinguishes problems is used
LONGEST_NAME = 60  # characters of a kind's name on the page


class Pictures:
    """The pictures of some splits, up to the page's budget of characters."""

    def __init__(self, splits: Sequence[Path]) -> None:
        """Index the test splits of tasks with pictures, `<task>/test.parquet`, and the training split."""
        self._splits = {split_name(path): path for path in splits}
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._left = MOST_CHARACTERS
        self.files: dict[str, bytes] = {}  # the shown pictures, by a name such as geo3k_12_1.png

    def of(self, split: str, problem: int) -> tuple[str, ...]:
        """Return a problem's pictures as data URIs; `split`: a task for its test split, or TRAINING. (): no pictures, or no room.

        Raises UserError if a picture cannot be read.
        """
        if split not in self._splits:
            return ()
        path = self._splits[split]
        if split not in self._columns:
            self._columns[split] = read_parquet(path, columns=["images"]).column("images")
        try:
            small = [_small(rgb_file(image["bytes"])) for image in self._columns[split][problem].as_py()]
        except UserError as error:
            raise UserError(f"{path} row {problem}: images: {error}: {AGAIN}.") from None
        uris = tuple(f"data:image/png;base64,{b64encode(each).decode()}" for each in small)
        if sum(map(len, uris)) > self._left:
            return ()
        self._left -= sum(map(len, uris))
        self.files |= {f"{split}_{problem}_{number}.png": each for number, each in enumerate(small, start=1)}
        return uris


def split_name(split: Path) -> str:
    """Return the task of a test split; TRAINING for the training split."""
    return split.parent.name if split.name == "test.parquet" else TRAINING


def _small(file: bytes) -> bytes:
    """Return a PNG of few colours, at most LONGEST_SIDE pixels a side."""
    with Image.open(io.BytesIO(file), formats=("PNG", "JPEG")) as picture:
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        small = io.BytesIO()
        picture.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


class Kinds:
    """The kinds of the problems of some splits."""

    def __init__(self, splits: Sequence[Path]) -> None:
        """Index the splits: `<task>/test.parquet`, and the training split under the name TRAINING."""
        self._splits = {split_name(path): path for path in splits}
        self._read: dict[tuple[str, str], Sequence[str]] = {}

    def of(self, split: str, problems: Sequence[int]) -> list[str] | None:
        """Return the kind of each problem; None if all are of one kind, or the split is not known."""
        if split not in self._splits or not problems:
            return None
        for field in FIELDS:
            values = self._column(split, field)
            kinds = [visible(values[problem], LONGEST_NAME) for problem in problems]
            if len(set(kinds)) > 1:
                return kinds
        return None

    def _column(self, split: str, field: str) -> Sequence[str]:
        if (split, field) not in self._read:
            column = read_parquet(self._splits[split], columns=[field]).column(field)
            self._read[split, field] = [str(value) for value in column.to_pylist()]
        return self._read[split, field]
