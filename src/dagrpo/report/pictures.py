"""The pictures of problems, small enough to stand in a page that needs no other file.

Read from the splits, by the row of the problem: no table of attempts holds pictures. Not here: which problems are shown.
"""

import io
from base64 import b64encode
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from PIL import Image

from dagrpo.errors import UserError
from dagrpo.files import read_parquet
from dagrpo.tasks.images import rgb_file
from dagrpo.tasks.schema import SCHEMA

LONGEST_SIDE = 256  # pixels
COLOURS = 64
MOST_CHARACTERS = 400_000  # of all pictures on a page, as they stand in it
TRAINING = "train"  # where another split has the name of its task
AGAIN = "run the stage that makes it again"


class Pictures:
    """The pictures of some splits, until a page has had enough of them."""

    def __init__(self, splits: Sequence[Path]) -> None:
        """`splits`: the test splits of tasks with pictures, `<task>/test.parquet`, and the split that training drew from."""
        self._splits = {split_name(path): _Split(path) for path in splits}
        self._left = MOST_CHARACTERS
        self.files: dict[str, bytes] = {}  # what was shown, by a name such as geo3k_12_1.png

    def of(self, split: str, problem: int) -> tuple[str, ...]:
        """Those of a problem, as data URIs: of a task's test split by the task's name, or of TRAINING. (): none, or no room.

        UserError: the split has no such row, or a picture that cannot be read.
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
    """The column `images` of a split, read when it is first asked for."""

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
        """The files of a row's pictures. UserError: there is no such row, or one is no picture."""
        if not 0 <= problem < len(self._column):
            raise UserError(f"{self._path} has no row {problem}, of which there are scores: {AGAIN}.")
        try:
            return [rgb_file(image["bytes"]) for image in self._column[problem].as_py()]
        except UserError as error:
            raise UserError(f"{self._path} row {problem}: images: {error}: {AGAIN}.") from None


def split_name(split: Path) -> str:
    """The task of a test split; TRAINING for the one that training drew from."""
    return split.parent.name if split.name == "test.parquet" else TRAINING


def _small(file: bytes) -> bytes:
    """A PNG of few colours, and of no more than LONGEST_SIDE pixels a side."""
    with Image.open(io.BytesIO(file)) as picture:
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        small = io.BytesIO()
        picture.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()
