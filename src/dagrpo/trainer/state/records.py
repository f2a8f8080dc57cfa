"""Files of finished steps, and tables of refused data.

There is one file of rollouts, and one of metrics and seconds per step; they are merged at the end.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagrpo.core.errors import UserError
from dagrpo.core.trajectory import Trajectory
from dagrpo.rollout.attempts_file import write_attempts
from dagrpo.trainer.run import step_file
from dagrpo.trainer.state.digest_table import FILE as DIGESTS
from dagrpo.trainer.state.digest_table import StepDigests, digest_table
from dagrpo.trainer.state.states import THREADS, require_whole_file
from dagrpo.utils.checksummed_json import Damaged, read_checksummed, write_checksummed
from dagrpo.utils.files import atomic_folder, share, write_json
from dagrpo.utils.manifest import entry_of, fault_of_size
from dagrpo.utils.tables import write_parquet


class Record:
    """Recorded steps of a run that may be interrupted, beside its state and complete up to it.

    Raises Damaged if a step's files have changed. The run then resumes from a state before that step.
    """

    def __init__(self, root: Path) -> None:
        self._rollouts = root / "rollouts"
        self._metrics = root / "metrics"

    def add(
        self,
        step: int,
        rollouts: pa.Table,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        digests: StepDigests,
    ) -> None:
        """Store a finished step (1-based). Rewriting it after a resume changes only the seconds."""
        write_attempts(self.rollouts(step), rollouts)
        entry = asdict(entry_of(self.rollouts(step)))
        content = {
            "metrics": dict(metrics),
            "seconds": dict(seconds),
            "rollouts": entry,
            "digests": asdict(digests),
        }
        write_checksummed(self._metrics / f"step_{step:05d}.json", content)

    def rollouts(self, step: int) -> Path:
        """Return the rollouts file of a finished step."""
        return self._rollouts / step_file(step)

    def require_whole(self, steps: int) -> None:
        """Check the files of the first steps. Raises Damaged if one has changed, so that its step is computed again."""
        self._require(require_whole_file, range(1, steps + 1))

    def require_resumable(self, steps: int) -> None:
        """Check as `require_whole`, but read only the newest step's rollouts: of the others their sizes, until the run ends."""
        self._require(partial(require_whole_file, fault=fault_of_size), range(1, steps))
        self._require(require_whole_file, range(max(1, steps), steps + 1))

    def _require(self, check: Callable[[Path, Mapping[str, Any]], None], steps: Iterable[int]) -> None:
        def require(step: int) -> None:
            try:
                check(self.rollouts(step), self._step(step)["rollouts"])
            except Damaged as damage:
                again = f"{damage.fault}, and step {step}, which belongs to the result, has to be made again"
                raise Damaged(damage.path, again) from None

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(require, steps))

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of a finished step that belong to its result."""
        return dict(self._step(step)["metrics"])

    def reported(self, step: int) -> dict[str, float]:
        """Return all figures of a finished step, including the seconds."""
        return self.metrics(step) | dict(self._step(step)["seconds"])

    def digests(self, step: int) -> StepDigests:
        """Return the digests of a finished step."""
        return StepDigests.of_json(self._step(step)["digests"])

    @property
    def steps(self) -> int:
        """Return the number of consecutive recorded steps, from the first one on."""
        return next(step for step in itertools.count() if not (self._metrics / f"step_{step + 1:05d}.json").is_file())

    def write_metrics(self, steps: int, path: Path) -> None:
        """Write metrics.parquet: one row per step, without a gap. Seconds are left out, as they would make the bytes differ.

        A figure that a step lacks, as of a task of a mixture that it has no prompt of, is NaN.
        """
        known = [self.metrics(step) for step in range(1, steps + 1)]
        absent = dict.fromkeys((name for metrics in known for name in metrics), math.nan)
        rows = [{"step": step, **absent, **metrics} for step, metrics in enumerate(known, start=1)]
        fields = [("step", pa.int32()), *((name, pa.float64()) for name in absent)]
        write_parquet(path, pa.Table.from_pylist(rows, schema=pa.schema(fields)))

    def write_rollouts(self, steps: int, manifest: Path) -> None:
        """Write the folder of rollouts with the steps' digests, its manifest last, by `share`.

        Raises Damaged if a step's files have changed since; a table is then renamed, so that a resumed run computes it again.
        """
        try:
            self.require_whole(steps)
        except Damaged as damage:
            if damage.path.parent == self._rollouts and damage.path.is_file():
                damage.path.rename(damage.path.with_name(f"damaged_{damage.path.name}"))
            raise
        with atomic_folder(manifest.parent) as folder:
            files = {}
            for step in range(1, steps + 1):
                share(self.rollouts(step), folder / step_file(step))
                files[step_file(step)] = self._step(step)["rollouts"]
            write_parquet(folder / DIGESTS, digest_table({step: self.digests(step) for step in range(1, steps + 1)}))
            files[DIGESTS] = asdict(entry_of(folder / DIGESTS))
            write_json(folder / manifest.name, {"files": files})

    def _step(self, step: int) -> dict[str, Any]:
        return read_checksummed(self._metrics / f"step_{step:05d}.json")


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
