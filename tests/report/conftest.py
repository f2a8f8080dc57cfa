"""The made-up experiment that most tests here start from."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.report.synthetic import Files, make_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Files:
    """One seed, one task."""
    return make_experiment(tmp_path)
