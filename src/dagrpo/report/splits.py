"""Pictures and kinds of problems, read from the splits.

Found by the row of a problem, because no table of attempts has them.
"""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
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
        """Index the test splits of tasks with pictures, `<task>/test.parquet`, and the train splits in their order."""
        self._splits = _by_name(splits)
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._left = MOST_CHARACTERS
        self.files: dict[str, bytes] = {}  # the shown pictures, by a name such as geo3k_12_1.png

    def of(self, split: str, problem: int) -> tuple[str, ...]:
        """Return a problem's pictures as data URIs; `split`: a task for its test split, or TRAINING. (): no pictures, or no room.

        Raises UserError if a picture cannot be read.
        """
        if split not in self._splits:
            return ()
        if split not in self._columns:
            self._columns[split] = _column(self._splits[split], "images")
        try:
            small = [_small(rgb_file(image["bytes"])) for image in self._columns[split][problem].as_py()]
        except UserError as error:
            raise UserError(f"{self._splits[split][0]} row {problem}: images: {error}: {AGAIN}.") from None
        uris = tuple(f"data:image/png;base64,{b64encode(each).decode()}" for each in small)
        if sum(map(len, uris)) > self._left:
            return ()
        self._left -= sum(map(len, uris))
        self.files |= {f"{split}_{problem}_{number}.png": each for number, each in enumerate(small, start=1)}
        return uris


def _by_name(splits: Sequence[Path]) -> Mapping[str, list[Path]]:
    """Return each test split by its task, and the train splits as TRAINING: their rows are counted one after the other."""
    by_name: dict[str, list[Path]] = {}
    for split in splits:
        by_name.setdefault(split.parent.name if split.name == "test.parquet" else TRAINING, []).append(split)
    return by_name


def _column(splits: Sequence[Path], name: str) -> pa.ChunkedArray:
    return pa.concat_tables([read_parquet(path, columns=[name]) for path in splits]).column(name)


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
        """Index the splits: `<task>/test.parquet`, and the train splits under the name TRAINING."""
        self._splits = _by_name(splits)
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
            column = _column(self._splits[split], field)
            self._read[split, field] = [str(value) for value in column.to_pylist()]
        return self._read[split, field]
