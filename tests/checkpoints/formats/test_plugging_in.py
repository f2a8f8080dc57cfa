"""A format comes from a package of its own: dagrpo knows none by name, and says what to install."""

import ast
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

ROOT = Path(__file__).parents[3]


class Reversed(Dcp):
    """A format of somebody else: DCP under another name."""

    name = "reversed"

    def recognises(self, folder: Path) -> bool:
        return (folder / "reversed.txt").is_file()


FORMAT = Reversed()


def _install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if these were all the entry points of the environment."""
    monkeypatch.setattr(plugins, "_entry_points", lambda: points)


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # import_module("...")
            names.add(node.value)
    return names


@pytest.mark.nightly
def test_no_module_of_dagrpo_imports_a_guest() -> None:
    guests = {path.name for path in (ROOT / "packages").glob("dagrpo_*/src/*") if path.suffix != ".egg-info"}
    assert {"dagrpo_megatron", "dagrpo_verl"} <= guests
    guests -= {"dagrpo_answers", "dagrpo_sandbox"}  # no plug-ins, but what dagrpo stands on
    modules = [*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]
    assert len(modules) > 100
    importing = {
        str(path): sorted(name for name in _imported(path) if name.partition(".")[0] in guests) for path in modules
    }
    assert {path: names for path, names in importing.items() if names} == {}


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
