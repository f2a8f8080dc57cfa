"""Two sizes of every hunt for faults; the undisturbed run they are compared with; the table of the faults at the end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.faults.tally import Tally
from tests.faults.whole import WHOLE, seed
from tests.pipeline.conftest import run_by_snakemake as run_by_snakemake
from tests.pipeline.snakemake import clones

_COMMON = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink)
)
settings.register_profile("faults, bounded", _COMMON, max_examples=25, derandomize=True)
settings.register_profile("faults, whole", _COMMON, max_examples=2000)
TALLY = Tally()
Copy = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What records runs in MLflow is killed like everything else, and what MLflow has afterwards is compared."""
    monkeypatch.setenv("DAGRPO_TRACKING", "on")


@pytest.fixture(scope="session")
def undisturbed(request: pytest.FixtureRequest) -> Path:
    """A clone in which the tiny experiment has run to its end. DAGRPO_FAULTS_UNDISTURBED names one that is there already."""
    given = os.environ.get("DAGRPO_FAULTS_UNDISTURBED")
    return Path(given) if given else request.getfixturevalue("run_by_snakemake")


@pytest.fixture(scope="session")
def expected(undisturbed: Path) -> dict[str, str]:
    """The digests of all its outputs."""
    return clones.outputs(undisturbed)


@pytest.fixture
def copy(undisturbed: Path, tmp_path: Path) -> Copy:
    """Makes copies of it to break, by name."""
    return lambda name: clones.copied(undisturbed, tmp_path / name)


def emptied_copy(clone: Path, folder: Path) -> Path:
    """A copy of a clone, with the files alone that git has of it."""
    clones.copied(clone, folder)
    for command in (["clean", "-fdxq"], ["checkout", "-q", "."]):
        clones.run(folder, "git", *command)
    return folder


@pytest.fixture(scope="session")
def tally() -> Tally:
    return TALLY


@pytest.fixture(scope="session")
def faults_seed() -> int:
    chosen = seed()
    print(f"DAGRPO_FAULTS_SEED={chosen} makes the same random choices again.", flush=True)
    return chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if WHOLE and TALLY.faults:
        for line in ["", *TALLY.table(), *TALLY.differences()]:
            terminalreporter.write_line(line)
