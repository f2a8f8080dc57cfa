"""A format comes from a package of its own: dagrpo knows none by name, and says what to install."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import ValidationError

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.checkpoints.formats.dcp import Dcp
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import format_of
from dagrpo.core import plugins
from dagrpo.utils.manifest import MANIFEST


class Reversed(Dcp):
    """A format of somebody else: DCP under another name."""

    name = "reversed"

    def recognises(self, folder: Path) -> bool:
        return (folder / "reversed.txt").is_file()


FORMAT = Reversed()


def _install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if these were all the entry points of the environment."""
    monkeypatch.setattr(plugins, "_entry_points", lambda: points)


def test_names_of_formats_are_known_without_importing_torch() -> None:
    code = "import sys; from dagrpo.checkpoints.config import Checkpoint; Checkpoint(format='dcp'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def test_without_its_package_a_format_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch)
    with pytest.raises(ValidationError, match=r"'megatron', .* not installed.*pip install \./packages/dagrpo_megatron"):
        Checkpoint(format="megatron")


def test_an_import_path_is_not_taken_for_a_format() -> None:
    with pytest.raises(ValidationError, match="a checkpoint format that is not installed"):
        Checkpoint(format=f"{__name__}:FORMAT")


def test_a_format_of_another_package_is_written_read_and_recognised(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_lab_formats", sys.modules[__name__])
    _install(monkeypatch, EntryPoint("reversed", "a_lab_formats:FORMAT", "dagrpo.checkpoint_formats"))
    assert FORMATS.names() == ["dcp", "huggingface", "reversed"]
    params = Checkpoint(format="reversed")
    convert(pristine, tmp_path / "initial", params)
    assert verify(tmp_path / "initial").format == "reversed"
    export(tmp_path / "initial", tmp_path / "exported", params)
    assert (tmp_path / "exported" / MANIFEST).read_bytes() == (pristine / MANIFEST).read_bytes()
    (tmp_path / "initial" / "reversed.txt").touch()
    (tmp_path / "initial" / MANIFEST).unlink()
    assert format_of(tmp_path / "initial") == "reversed"  # asked before dcp, which recognises these files too
