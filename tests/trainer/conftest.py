"""What whole runs of the trainer begin with, and what they leave."""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagrpo.core.errors import Terminated


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(initial checkpoint, train split) with ten problems, as tests.trainer.runs makes them. No test changes them."""
    from tests.trainer import runs  # torch: not every test beside this file needs it

    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True, scope="module")
def _deterministic() -> Iterator[None]:
    """Take back what a run has set for the whole process."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].use_deterministic_algorithms(False)


def terminate(number: int, frame: object) -> None:
    """End as a stage does."""
    raise Terminated(128 + number)


@pytest.fixture
def stage_handlers() -> Iterator[None]:
    """Handlers as the frame of stages sets them, and afterwards as they were; a run leaves them alone, and no thread."""
    own = ((signal.SIGTERM, terminate), (signal.SIGINT, signal.default_int_handler))
    former = [signal.signal(*each) for each in own]
    yield
    kept = [signal.signal(number, handler) for (number, _), handler in zip(own, former, strict=True)]
    assert kept == [handler for _, handler in own]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
