"""The example lab, importable as an installed package of somebody else would be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagrpo.core import plugins


@pytest.fixture
def _lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def installed_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _lab: None) -> Iterator[Path]:
    """A distribution with a file entry_points.txt that a test writes."""
    folder = tmp_path / "example_lab-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: example_lab\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._entry_points.cache_clear()
    yield folder / "entry_points.txt"
    plugins._entry_points.cache_clear()
