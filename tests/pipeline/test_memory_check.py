"""On a GPU, what the plan refuses is refused before it is trained."""

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_plan.tests.conftest import project, qwen3

from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.job_files import configuration_file
from dagrpo.pipeline.supervisor import require_planned_room

__all__ = ["project"]


@pytest.fixture
def gpu(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one H100, by its nvidia-smi."""
    program = project / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return project


def _require(params: Params) -> None:
    require_planned_room(Namespace(configuration=Path(configuration_file(params))), params.runtime)


def _short(**engine: int) -> Params:
    """With eight sequences of 84 tokens in a pass."""
    return qwen3({"runtime": {"training": {"micro_batch_size": 8}, "engine": engine}})


def _long(runtime: Mapping[str, Any] | None = None) -> Params:
    """With 256 sequences of 8,256 tokens in a pass, in float32, which is beyond any GPU."""
    return qwen3({"rollout": {"max_new_tokens": 8192}, "runtime": {"training": runtime or {}}})


def test_what_does_not_fit_is_refused_with_the_remedy_of_the_plan(gpu: Path) -> None:
    with pytest.raises(
        UserError, match=r"^The stage train needs .* and NVIDIA H100 80GB HBM3 has 79\.6 GiB: set "
    ) as told:
        _require(_long())
    assert str(told.value).endswith("To run it all the same, set runtime.training.require_room to false.")


def test_what_fits_or_is_asked_for_all_the_same_is_trained(gpu: Path) -> None:
    _require(_short())
    _require(_long({"require_room": False}))
    require_planned_room(Namespace(configuration=None), _long().runtime)  # of a stage that is started by hand


@pytest.mark.parametrize("answer", ["0", "NVIDIA GB10, [N/A]", ""])
def test_where_the_driver_does_not_say_how_much_memory_there_is_a_warning_says_that_nothing_was_checked(
    gpu: Path, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    (gpu / "bin/nvidia-smi").write_text(f"#!/bin/sh\necho '{answer}'\n")
    _require(_long())
    (told,) = caplog.messages
    assert told.startswith(
        "Whether this experiment fits the GPU was not checked: nvidia-smi does not say how much memory"
    )
