"""Times of a training run, beside the log of its stage.

No output depends on them: outputs of identical bytes may have other times. So they name the metrics of their run by digest,
and are ignored for any other run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_object, sha256_of, write_json

FILE = "train.times.json"
GROUP = "timing/"
SECONDS = "_seconds"  # suffix of the names of a step's parts


def times_of(curve: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the times among all figures of each step."""
    return [{name: value for name, value in figures.items() if name.startswith(GROUP)} for figures in curve]


def step_seconds(times: Mapping[str, float]) -> float:
    """Return a step's duration, the sum of its parts."""
    return sum(value for name, value in times.items() if name.endswith(SECONDS))


def write_times(folder: Path, metrics: Path, times: Sequence[Mapping[str, float]]) -> None:
    """Write the times of each step, from the first on, to the folder of the stage's log. `metrics`: the run's metrics.parquet."""
    write_json(folder / FILE, {"metrics": sha256_of(metrics), "steps": [dict(step) for step in times]})


def read_times(folder: Path, metrics: Path) -> list[dict[str, float]] | None:
    """Read the times of this run; None if they are missing, damaged or of another run."""
    try:
        content = read_object(folder / FILE)
    except UserError:
        return None
    return content["steps"] or None if content["metrics"] == sha256_of(metrics) else None
