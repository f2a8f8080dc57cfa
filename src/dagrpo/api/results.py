"""An experiment's results as tables: `dagrpo.load_scores("arithmetic_tiny")`.

For notebooks, after `import dagrpo`. Each function returns a pyarrow.Table (call `.to_pandas()` for a data frame). Nothing is
computed here: differences with intervals are `dagrpo compare`'s.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dagrpo.core.errors import UserError, nearest
from dagrpo.evaluation.outcomes import SCORES
from dagrpo.rollout.table import read_table
from dagrpo.trainer.run import step_file
from dagrpo.utils.files import read_object, sha256_of
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet


def load_scores(experiment: str, *, root: str | Path = ".") -> pa.Table:
    """Load a row per scored completion: of every seed, task and policy.

    Columns: `seed` (int64), `policy` ("base", "trained", "step_40"), then those of `dagrpo.evaluation.tables.SCORES`: `task`,
    `problem_index`, `sample_index` (-1: greedy), `extracted`, `verdict`, `correct`, `completion_tokens`, `completion`,
    `question`, `ground_truth` and others. `root` is the project's folder. Raises UserError if nothing is scored yet, or a file is damaged.
    """
    found = [path for run in runs_of(experiment, root) for path in sorted(run.glob("eval/*/*/scores.parquet"))]
    files = [path for path in found if are_current(path)]
    if not files:
        raise UserError(f"{experiment} has no scores yet: run it to its stage score.")
    tables = [
        _with(_with(read_table(path, SCORES), "policy", path.parent.name), "seed", _seed(path.parents[3]))
        for path in files
    ]
    return pa.concat_tables(tables)


def are_current(scores: Path) -> bool:
    """Return False for scores of a kept or chosen policy of an earlier training: no stage makes them again once nothing asks for it."""
    run, record = scores.parents[3], scores.with_name("completions.provenance.json")
    if scores.parent.name in ("base", "trained") or not record.is_file():
        return True
    read = {Path(path).parts[-3:]: digest for path, digest in read_object(record)["inputs"].items()}
    there = [run / folder / MANIFEST for folder in ("kept", "chosen")]
    return all(read.get(path.parts[-3:]) in (None, sha256_of(path)) for path in there if path.is_file())


def load_metrics(experiment: str, *, root: str | Path = ".") -> pa.Table:
    """Load a row per training step of every seed.

    Columns: `seed` (int64), `step` (int32, from 1), then a float64 for each figure, such as `reward/mean`; docs/metrics.md explains
    them. A figure that a seed does not have is null. Raises UserError if no seed has been trained to its end.
    """
    files = [path for run in runs_of(experiment, root) if (path := run / "metrics.parquet").is_file()]
    if not files:
        raise UserError(f"{experiment} has no metrics yet: run it to the end of its stage train.")
    return pa.concat_tables(
        [_with(read_parquet(path), "seed", _seed(path.parent)) for path in files], promote_options="default"
    )


def load_rollouts(
    experiment: str, *, steps: Sequence[int] | None = None, seeds: Sequence[int] | None = None, root: str | Path = "."
) -> pa.Table:
    """Load a row per attempt that training made.

    Columns: `seed` (int64), then those that the trainer records: `step`, `prompt`, `completion`, `completion_ids`, `reward`,
    `advantage`, `correct`, `discarded` (made, and not trained on) and others. `steps` and `seeds` name those to read; all of
    them if not given, which may be gigabytes. Raises UserError if one of them does not exist.
    """
    runs = {_seed(run): run for run in runs_of(experiment, root)}
    missing = [seed for seed in seeds or () if seed not in runs]
    if missing:
        raise UserError(f"{experiment} has no seed {missing[0]}: it has {', '.join(map(str, runs))}.")
    tables = [
        _with(read_parquet(path), "seed", seed)
        for seed, run in runs.items()
        if seeds is None or seed in seeds
        for path in _step_files(run, steps)
    ]
    if not tables:
        raise UserError(f"{experiment} has no rollouts yet: run it to the end of its stage train.")
    return pa.concat_tables(tables, promote_options="default")


def runs_of(experiment: str, root: str | Path) -> list[Path]:
    """List the folders of an experiment's seeds, ascending. Raises UserError without any."""
    results = Path(root, "results")
    runs = sorted((results / experiment / "runs").glob("seed_*"), key=_seed)
    if not runs:
        known = [path.parent.name for path in results.glob("*/runs")]
        raise UserError(f"There is no experiment `{experiment}` in {results}: {nearest(experiment, known)}.")
    return runs


def _step_files(run: Path, steps: Sequence[int] | None) -> list[Path]:
    folder = run / "rollouts"
    if steps is None:
        return sorted(folder.glob("step_*.parquet"))
    files = [folder / step_file(step) for step in steps]
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise UserError(f"{missing[0]} is missing: name steps that {run} has trained.")
    return files


def _seed(run: Path) -> int:
    return int(run.name.removeprefix("seed_"))


def _with(table: pa.Table, name: str, value: int | str) -> pa.Table:
    """Return the table with a first column of one value."""
    kind = pa.int64() if isinstance(value, int) else pa.string()
    return table.add_column(0, pa.field(name, kind, nullable=False), pa.repeat(pa.scalar(value, kind), table.num_rows))
