"""What finished steps produced: one file of rollouts and one of metrics per step, put together at the end."""

import shutil
from pathlib import Path

import pyarrow as pa

from dagrpo.files import atomic_folder, read_json, sha256_of, write_json, write_parquet


class History:
    """The rollouts and metrics of a run that may be interrupted. Lives beside the trainer's state."""

    def __init__(self, root: Path) -> None:
        self._rollouts = root / "rollouts"
        self._metrics = root / "metrics"

    def add(self, step: int, rollouts: pa.Table, metrics: dict[str, float]) -> None:
        """Record a finished step; the step counts from 1. Written again after a resume, with the same content."""
        write_parquet(self._rollouts / f"step_{step:05d}.parquet", rollouts)
        write_json(self._metrics / f"step_{step:05d}.json", metrics)

    def write_metrics(self, steps: int, path: Path) -> None:
        """metrics.parquet: one row per step, no step missing."""
        rows = [{"step": step, **read_json(self._metrics / f"step_{step:05d}.json")} for step in range(1, steps + 1)]
        fields = [("step", pa.int32()), *((name, pa.float64()) for name in rows[0] if name != "step")]
        write_parquet(path, pa.Table.from_pylist(rows, schema=pa.schema(fields)))

    def write_rollouts(self, steps: int, manifest: Path) -> None:
        """The folder of rollouts, its manifest last."""
        with atomic_folder(manifest.parent) as folder:
            files = {}
            for step in range(1, steps + 1):
                name = f"step_{step:05d}.parquet"
                copy = Path(shutil.copyfile(self._rollouts / name, folder / name))
                files[name] = {"sha256": sha256_of(copy), "bytes": copy.stat().st_size}
            write_json(folder / manifest.name, {"files": files})
