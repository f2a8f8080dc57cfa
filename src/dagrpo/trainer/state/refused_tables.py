"""Tables of refused data that a check leaves beside the state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.utils.tables import write_parquet

FOLDER = "refused"  # in the folder of the run's state


def keep(state: Path, name: str, step: int, table: pa.Table) -> Path:
    """Write a table about `step` (1-based) and return its file. A later refusal of the same step overwrites it."""
    path = state / FOLDER / f"{name}_step_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, table)
    return path


@contextmanager
def keeping_attempts(state: Path, step: int, trajectories: Sequence[Trajectory]) -> Iterator[None]:
    """If a UserError is raised inside, write these attempts of `step` (1-based) to a table and name it in the message."""
    try:
        yield
    except UserError as refusal:
        path = keep(state, "attempts", step, _table(trajectories))
        raise UserError(f"{refusal} Every attempt is in {path}.") from None


def _table(trajectories: Sequence[Trajectory]) -> pa.Table:
    columns = {
        "problem_index": pa.array([each.prompt.index for each in trajectories], pa.int64()),
        "sample_index": pa.array([each.sample_index for each in trajectories], pa.int32()),
        "sampling_seed": pa.array([each.sampling_seed for each in trajectories], pa.int64()),
        "stop_reason": pa.array([each.stop_reason for each in trajectories], pa.string()),
        "fault": pa.array([each.fault for each in trajectories], pa.string()),
        "dropped_calls": pa.array([each.dropped_calls for each in trajectories], pa.int32()),
        "text": pa.array([each.text for each in trajectories], pa.string()),
        "completion_ids": pa.array(
            [[token for sample in each.samples for token in sample.completion_ids] for each in trajectories],
            pa.list_(pa.int32()),
        ),
    }
    return pa.table(columns)
