"""Programs of requirements/: what was installed can be imported, and has a line in the table of licences."""

import json
import runpy
from pathlib import Path

import pytest
from requirements.imports import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import ctypes; ctypes.CDLL('libnot_there.so.13')", r"libnot_there\.so\.13: cannot open shared object file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended by SIGILL"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_with_its_fault_and_a_remedy(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["json", "csv"])
    (tmp_path / "damaged.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        SystemExit, match=rf"damaged is installed, but Python 3.*{reason}.*`rm -rf .venv` and `make setup`"
    ):
        main(["json", "damaged", "csv"])


def test_each_component_is_a_line_with_its_licences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [{"license": {"id": "MIT"}}, {"license": {"name": "BSD\n  License"}}]
    components = [{"name": "Zmq", "version": "2", "licenses": several}, {"name": "bare", "version": "3"}]
    sbom, table = tmp_path / "sbom.cdx.json", tmp_path / "licenses.tsv"
    sbom.write_text(json.dumps({"components": components}))
    monkeypatch.setattr("sys.argv", ["licenses.py", str(sbom), str(table)])
    runpy.run_path(str(ROOT / "requirements/licenses.py"), run_name="__main__")
    assert table.read_text().splitlines() == ["bare\t3\tnot named in its metadata", "zmq\t2\tMIT; BSD License"]
