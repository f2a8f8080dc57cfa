"""Rollouts of the first and the last training steps, by completion."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.errors import UserError
from dagrpo.evaluation.statistics import Floats, Integers
from dagrpo.report.inputs import Inputs
from dagrpo.rollout.table import without_discarded
from dagrpo.utils.manifest import fault_of, listed_files
from dagrpo.utils.tables import read_parquet

COLUMNS = ("sample_index", "completion_ids", "finish_reason", "correct", "reward", "discarded")
OF_PROBLEMS = ("task", "problem_index", "discarded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The completions of some consecutive steps, of all seeds."""

    steps: tuple[int, int]  # first and last of them, counted from 1
    rewards: Floats  # [completions]
    lengths: Integers  # [completions], tokens
    truncated: npt.NDArray[np.bool_]  # [completions]
    right_per_group: Integers  # [prompts], right completions among those of one prompt
    group_size: int


def first_and_last(inputs: Inputs, most_steps: int) -> tuple[Phase, Phase]:
    """Return up to `most_steps` steps from each end, never overlapping unless there is a single step."""
    names = {seed: _step_files(path) for seed, path in inputs.rollouts.items()}
    total = min(len(steps) for steps in names.values())
    if total == 0:
        raise UserError("A rollouts/manifest.json lists no steps: run the stage train again.")
    count = max(1, min(most_steps, total // 2))
    return (
        _phase(inputs, {seed: steps[:count] for seed, steps in names.items()}, (1, count)),
        _phase(inputs, {seed: steps[-count:] for seed, steps in names.items()}, (total - count + 1, total)),
    )


def _step_files(manifest: Path) -> list[str]:
    """List the steps' rollout files in order, without the digests beside them."""
    return sorted(name for name in listed_files(manifest) if name.startswith("step_"))


def _phase(inputs: Inputs, names: dict[int, list[str]], steps: tuple[int, int]) -> Phase:
    tables = [_read(inputs.rollouts[seed], name) for seed in inputs.seeds for name in names[seed]]
    table = pa.concat_tables(tables)
    starts = np.flatnonzero(np.asarray(table["sample_index"].to_pylist()) == 0)  # a prompt's samples are adjacent
    correct = np.asarray(pc.fill_null(table["correct"], False).to_pylist(), dtype=np.int64)
    assert len(starts), "every prompt has a sample 0"
    return Phase(
        steps=steps,
        rewards=np.asarray(table["reward"].to_pylist(), dtype=np.float64),
        lengths=np.asarray(pc.list_value_length(table["completion_ids"]), dtype=np.int64),
        truncated=np.asarray(table["finish_reason"].to_pylist()) == "length",
        right_per_group=np.add.reduceat(correct, starts),
        group_size=table.num_rows // len(starts),
    )


def sampled_rollouts(inputs: Inputs, seed: int, step: int) -> pa.Table:
    """Return all rollouts of `step` (1-based), including discarded ones; all columns."""
    manifest = inputs.rollouts[seed]
    return _read_whole(manifest, _step_files(manifest)[step - 1])


def last_step(inputs: Inputs, seed: int) -> tuple[int, pa.Table]:
    """Return the last step's number and its rollouts, all columns."""
    manifest = inputs.rollouts[seed]
    names = _step_files(manifest)
    return len(names), _read_all(manifest, names[-1])


def step_rollouts(inputs: Inputs, seed: int, step: int) -> pa.Table:
    """Return the rollouts that `step` (1-based) learned from, all columns."""
    manifest = inputs.rollouts[seed]
    return _read_all(manifest, _step_files(manifest)[step - 1])


def problems_of_steps(inputs: Inputs, seed: int) -> list[list[tuple[str, int]]]:
    """Return task and row of each step's problems, in the order of sampling, without repeats; [] if a table does not name them.

    Does not compare files with the manifest's digests: every file would have to be read whole. To show one of these problems, read
    its step with `step_rollouts`, which does compare.
    """
    manifest = inputs.rollouts[seed]
    return [_problems(manifest.parent / name) for name in _step_files(manifest)]


def _problems(path: Path) -> list[tuple[str, int]]:
    table = read_parquet(path, columns=OF_PROBLEMS)
    if len(table.column_names) < len(OF_PROBLEMS):
        return []
    rows = without_discarded(table).select(["task", "problem_index"]).to_pylist()
    return list(dict.fromkeys((row["task"], row["problem_index"]) for row in rows))


def _read(manifest: Path, name: str) -> pa.Table:
    """Read the columns of a phase from one step's rollouts."""
    return _read_all(manifest, name).select(COLUMNS)


def _read_all(manifest: Path, name: str) -> pa.Table:
    """Read one step's rollouts without the discarded ones."""
    return without_discarded(_read_whole(manifest, name))


def _read_whole(manifest: Path, name: str) -> pa.Table:
    """Read one step's file, discarded rollouts included. Raises UserError if it differs from the manifest's entry."""
    path = manifest.parent / name
    if fault := fault_of(path, listed_files(manifest)[name]):
        raise UserError(f"{path} {fault}, but {manifest} lists it: run the stage train again.")
    table = read_parquet(path)
    missing = [column for column in COLUMNS if column not in table.column_names]
    if missing or table.num_rows == 0:
        raise UserError(f"{path} has no {'rows' if not missing else f'column `{missing[0]}`'}: train again.")
    return table
