"""Programs of others read our crates: roc-validator finds what its profile requires, runcrate every action.

They need an environment of their own (requirements/crate-test.lock): DAGRPO_CRATE_PYTHON names its Python, as `make nightly` does.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture
def python() -> Path:
    path = os.environ.get("DAGRPO_CRATE_PYTHON", "")
    if not path:
        pytest.skip("DAGRPO_CRATE_PYTHON names no Python with requirements/crate-test.lock: `make nightly` makes one")
    return Path(path)


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_roc_validator_finds_all_that_the_profile_requires(python: Path, crate: Path) -> None:
    _output(python, Path(__file__).with_name("validator.py"), crate)


def test_it_finds_what_is_missing(python: Path, crate: Path) -> None:
    metadata = crate / "ro-crate-metadata.json"
    content = json.loads(metadata.read_text())
    content["@graph"] = [each for each in content["@graph"] if each["@type"] != "ControlAction"]
    metadata.write_text(json.dumps(content))
    done = subprocess.run([python, Path(__file__).with_name("validator.py"), crate], capture_output=True, check=False)
    assert done.returncode == 1


def test_runcrate_reads_every_action(python: Path, crate: Path) -> None:
    report = _output(python.with_name("runcrate"), "report", crate)
    actions = [line for line in report.splitlines() if line.startswith("action: #action/")]
    assert len(actions) == len(list(crate.rglob("*provenance.json")))
    assert "action: #run" in report
