"""The plan against the peak of real updates, of a model of eight million parameters in a process of its own."""

from pathlib import Path

import pytest
from benchmarks.step_memory import in_a_process, params_of

from dagrpo.models.make import make_model


@pytest.mark.nightly
def test_an_update_takes_what_is_planned(tmp_path: Path) -> None:
    """Every larger tensor is mapped by itself: otherwise the allocator's holes, which vary, would count, too."""
    make_model(tmp_path / "model", params_of("float32", smollm2=False).model)
    found = in_a_process("float32", tmp_path / "model", smollm2=False, apart=True)
    assert 0.85 < (found.planned - found.holes) / found.measured < 1.5
