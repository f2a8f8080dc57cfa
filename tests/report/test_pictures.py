"""Problems with pictures on the page: small, each once, within what a page may hold, and from a split that can be trusted."""

import io
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.pictures import picture
from tests.report.synthetic import make_experiment, page_of
from tests.report.test_page import Checker
from tests.rollout.problems import task_row

from dagrpo.core.errors import UserError
from dagrpo.data.schema import to_table
from dagrpo.report.page import render
from dagrpo.report.splits import LONGEST_SIDE, MOST_CHARACTERS, Pictures
from dagrpo.utils.tables import write_parquet

PROBLEMS = 40
SOURCE = re.compile(
    r'<img class="picture" src="data:image/png;base64,([A-Za-z0-9+/=]+)" alt="Picture (\d) of the problem">'
)


def noise(number: int) -> bytes:
    """A photograph, as far as its size goes."""
    pixels = np.random.default_rng(number).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_split(path: Path, files: Mapping[int, Sequence[bytes]]) -> Path:
    """A split of which some problems have pictures."""
    rows = [task_row(str(row), index=row, images=tuple(files.get(row, ()))) for row in range(PROBLEMS)]
    write_parquet(path, to_table(rows))
    return path


def opened(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(b64decode(data)))


def test_the_pictures_of_a_row_come_in_order_and_small(tmp_path: Path) -> None:
    split = write_split(tmp_path / "geo/test.parquet", {3: (picture(60, 40, "red"), picture(1000, 500, "blue"))})
    pictures = Pictures([split])
    first, second = map(opened, pictures.of("geo", 3))
    assert (first.size, first.convert("RGB").getpixel((0, 0))) == ((60, 40), (255, 0, 0))
    assert (second.size, second.convert("RGB").getpixel((0, 0))) == ((LONGEST_SIDE, LONGEST_SIDE // 2), (0, 0, 255))
    assert [*pictures.files] == ["geo_3_1.png", "geo_3_2.png"]
    assert pictures.of("geo", 4) == pictures.of("sums", 3) == ()


@pytest.mark.nightly
def test_a_page_has_as_many_pictures_as_it_has_room_for(tmp_path: Path) -> None:
    rows = range(PROBLEMS)
    pictures = Pictures([write_split(tmp_path / "geo/test.parquet", {row: (noise(row),) for row in rows})])
    shown = [pictures.of("geo", row) for row in rows]
    assert sum(len(uri) for uris in shown for uri in uris) <= MOST_CHARACTERS
    assert 3 < sum(map(bool, shown)) < PROBLEMS


def test_a_row_with_no_picture_in_its_column_is_named(tmp_path: Path) -> None:
    pictures = Pictures([write_split(tmp_path / "geo/test.parquet", {2: (b"no picture",)})])
    with pytest.raises(UserError, match=r"geo/test\.parquet row 2: images: is not a picture that can be read"):
        pictures.of("geo", 2)


@pytest.mark.nightly
def test_the_best_and_the_worst_are_shown_with_their_pictures_on_a_page_below_a_megabyte(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, tasks=("geo_tool",), problems=PROBLEMS)
    both = {row: (noise(row), picture(60, 40)) for row in range(PROBLEMS)}
    for path in (tmp_path / "pictures/geo_tool/test.parquet", tmp_path / "pictures/difficulty/train.parquet"):
        made.splits.append(write_split(path, both))
    html = render(page_of(made))
    assert len(html.encode()) < 1_000_000
    Checker(html).require_whole()
    shown = SOURCE.findall(html)
    assert html.count("<img") == len(shown) >= 10
    assert {number for _, number in shown} == {"1", "2"}
    assert '; img-src data:"' in html
