"""The made-up experiment that most tests here start from."""

from pathlib import Path

import pytest
from tests.report.synthetic import Files, make_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Files:
    """One seed, one task."""
    return make_experiment(tmp_path)
