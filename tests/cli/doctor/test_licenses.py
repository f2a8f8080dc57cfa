"""The table of licences that `make sbom` writes."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

COMPONENTS = [
    {"name": "Zmq", "version": "2", "licenses": [{"license": {"id": "MIT"}}, {"license": {"name": "BSD\n  License"}}]},
    {"name": "attrs", "version": "1", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
    {"name": "bare", "version": "3"},
]


def test_each_component_is_a_line_with_its_licences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbom, table = tmp_path / "sbom.cdx.json", tmp_path / "licenses.tsv"
    sbom.write_text(json.dumps({"components": COMPONENTS}))
    monkeypatch.setattr("sys.argv", ["licenses.py", str(sbom), str(table)])
    runpy.run_path(str(ROOT / "requirements/licenses.py"), run_name="__main__")
    assert table.read_text().splitlines() == [
        "attrs\t1\tMIT OR Apache-2.0",
        "bare\t3\tnot named in its metadata",
        "zmq\t2\tMIT; BSD License",
    ]
