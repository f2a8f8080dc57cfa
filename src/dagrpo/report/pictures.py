"""Pictures of problems, shrunk and embedded in the page.

Read from the splits by the problem's row, because no table of attempts holds pictures. `examples`, `conversations` and
`occurrences` choose the problems.
"""

import io
from base64 import b64encode
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from PIL import Image

from dagrpo.core.errors import UserError
from dagrpo.data.images import rgb_file
from dagrpo.data.schema import SCHEMA
from dagrpo.utils.tables import read_parquet

LONGEST_SIDE = 256  # pixels
COLOURS = 64
MOST_CHARACTERS = 400_000  # of all pictures on a page, encoded
TRAINING = "train"  # in place of a test split's task
AGAIN = "run the stage that makes it again"


class Pictures:
    """The pictures of some splits, up to the page's budget of characters."""

    def __init__(self, splits: Sequence[Path]) -> None:
        """Index the test splits of tasks with pictures, `<task>/test.parquet`, and the training split."""
        self._splits = {split_name(path): _Split(path) for path in splits}
        self._left = MOST_CHARACTERS
        self.files: dict[str, bytes] = {}  # the shown pictures, by a name such as geo3k_12_1.png

    def of(self, split: str, problem: int) -> tuple[str, ...]:
        """Return a problem's pictures as data URIs; `split`: a task for its test split, or TRAINING. (): no pictures, or no room.

        Raises UserError if the split has no such row, or a picture cannot be read.
        """
        if split not in self._splits:
            return ()
        small = [_small(picture) for picture in self._splits[split].pictures(problem)]
        shown = tuple(f"data:image/png;base64,{b64encode(each).decode()}" for each in small)
        if sum(map(len, shown)) > self._left:
            return ()
        self._left -= sum(map(len, shown))
        self.files |= {f"{split}_{problem}_{number}.png": each for number, each in enumerate(small, start=1)}
        return shown


class _Split:
    """The column `images` of a split, read on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _column(self) -> pa.ChunkedArray:
        table = read_parquet(self._path, columns=["images"])
        expected = SCHEMA.field("images").type
        if "images" not in table.column_names or table.column("images").type != expected:
            raise UserError(f"{self._path}: column `images` is missing, or not {expected}: {AGAIN}.")
        return table.column("images")

    def pictures(self, problem: int) -> list[bytes]:
        """Return the files of a row's pictures. Raises UserError if the row is missing, or a file is not a picture."""
        if not 0 <= problem < len(self._column):
            raise UserError(f"{self._path} has no row {problem}, of which there are scores: {AGAIN}.")
        try:
            return [rgb_file(image["bytes"]) for image in self._column[problem].as_py()]
        except UserError as error:
            raise UserError(f"{self._path} row {problem}: images: {error}: {AGAIN}.") from None


def split_name(split: Path) -> str:
    """Return the task of a test split; TRAINING for the training split."""
    return split.parent.name if split.name == "test.parquet" else TRAINING


def _small(file: bytes) -> bytes:
    """Return a PNG of few colours, at most LONGEST_SIDE pixels a side."""
    with Image.open(io.BytesIO(file)) as picture:
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        small = io.BytesIO()
        picture.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()
