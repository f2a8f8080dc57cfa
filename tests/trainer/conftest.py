"""What whole runs of the trainer begin with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(initial checkpoint, train split) with ten problems, as tests.trainer.runs makes them."""
    from tests.trainer import runs  # torch: not every test beside this file needs it

    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))
