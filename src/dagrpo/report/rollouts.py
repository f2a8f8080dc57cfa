"""Rollouts of the first and the last training steps, by completion."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagrpo.core.errors import UserError
from dagrpo.evaluation.statistics import Floats, Integers
from dagrpo.report.inputs import Inputs
from dagrpo.rollout.attempts_file import AttemptsFile
from dagrpo.rollout.table import REWARDS, with_texts, without_discarded
from dagrpo.utils.console import counted
from dagrpo.utils.manifest import FileEntry, fault_of, listed_files
from dagrpo.utils.tables import read_parquet

COLUMNS = ("sample_index", "completion_tokens", "finish_reason", "correct", "reward", "discarded")
OF_PROBLEMS = ("task", "problem_index", "discarded", "kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The completions of some consecutive steps, of all seeds."""

    steps: tuple[int, int]  # first and last of them, counted from 1
    rewards: Floats  # [completions]
    lengths: Integers  # [completions], tokens
    truncated: npt.NDArray[np.bool_]  # [completions]
    right_per_group: Integers  # [prompts], right completions among those of one prompt
    group_size: int


Phases = tuple[Phase, Phase]  # first and last steps


def first_and_last(inputs: Inputs, most_steps: int) -> Phases | None:
    """Return up to `most_steps` steps from each end, never overlapping unless there is a single step; None without rollouts."""
    names = {seed: _step_files(path) for seed, path in inputs.rollouts.items()}
    shortest, longest = (of(len(steps) for steps in names.values()) for of in (min, max))
    if shortest == 0:
        return None
    count = max(1, min(most_steps, shortest // 2))
    return (
        _phase(inputs, {seed: steps[:count] for seed, steps in names.items()}, (1, count)),
        _phase(inputs, {seed: steps[-count:] for seed, steps in names.items()}, (longest - count + 1, longest)),
    )


def _step_files(manifest: Path) -> list[str]:
    return sorted(name for name in listed_files(manifest) if name.startswith("step_"))


def _phase(inputs: Inputs, names: dict[int, list[str]], steps: tuple[int, int]) -> Phase:
    places = [(inputs.rollouts[seed], name) for seed in inputs.seeds for name in names[seed]]
    files = [_file(*place) for place in counted(places, f"rollouts of the steps {steps[0]} to {steps[1]}")]
    table = pa.concat_tables(without_discarded(file.short).select(COLUMNS) for file in files)
    starts = np.flatnonzero(np.asarray(table["sample_index"].to_pylist()) == 0)  # a prompt's samples are adjacent
    correct = np.asarray(pc.fill_null(table["correct"], False).to_pylist(), dtype=np.int64)
    assert len(starts), "every prompt has a sample 0"
    return Phase(
        steps=steps,
        rewards=np.asarray(table["reward"].to_pylist(), dtype=np.float64),
        lengths=np.asarray(table["completion_tokens"], dtype=np.int64),
        truncated=np.asarray(table["finish_reason"].to_pylist()) == "length",
        right_per_group=np.add.reduceat(correct, starts),
        group_size=table.num_rows // len(starts),
    )


def steps_of(inputs: Inputs, seed: int) -> int:
    """Return the number of steps with rollouts; 0 for a training that left no tables of them, as another project's trainer."""
    return len(_step_files(inputs.rollouts[seed]))


def step_rollouts(inputs: Inputs, seed: int, step: int) -> AttemptsFile:
    """Return all rollouts of `step` (1-based), including discarded ones."""
    manifest = inputs.rollouts[seed]
    return _file(manifest, _step_files(manifest)[step - 1])


def problems_of_steps(inputs: Inputs, seed: int) -> list[list[tuple[str, int]]]:
    """Return task and row of each step's problems of which texts were kept, in the order of sampling, without repeats.

    [] of a step whose table does not name them. Does not compare files with the manifest's digests: every file would have to be read
    whole. To show one of these problems, read its step with `step_rollouts`, which does compare.
    """
    manifest = inputs.rollouts[seed]
    problems = []
    for name in _step_files(manifest):
        table = read_parquet(manifest.with_name(name), columns=OF_PROBLEMS)
        is_named = len(table.column_names) == len(OF_PROBLEMS)
        rows = with_texts(without_discarded(table)).to_pylist() if is_named else []
        problems.append(list(dict.fromkeys((row["task"], row["problem_index"]) for row in rows)))
    return problems


def left_out(inputs: Inputs, seed: int) -> str | None:
    """Return a sentence if runtime.keep_rollouts has left texts and tokens out of some steps; None if they are all there."""
    manifest = inputs.rollouts[seed]
    kept = [read_parquet(manifest.parent / name, columns=("kept",)) for name in _step_files(manifest)]
    steps = sum(REWARDS in table["kept"].unique().to_pylist() for table in kept if table.num_columns)
    return f"runtime.keep_rollouts has left texts and tokens out of {steps} of {len(kept)} steps." if steps else None


def _file(manifest: Path, name: str) -> AttemptsFile:
    """Return one step's file. Raises UserError if it differs from the manifest's entry."""
    path = manifest.parent / name
    stat = path.stat() if path.is_file() else None
    if fault := _fault(path, listed_files(manifest)[name], stat and (stat.st_size, stat.st_mtime_ns)):
        raise UserError(f"{path} {fault}, but {manifest} lists it: run the stage train again.")
    return AttemptsFile(path, "run the stage train again")


@lru_cache
def _fault(path: Path, entry: FileEntry, changed: tuple[int, int] | None) -> str | None:
    """Return how a file differs from its entry. Read once while its size and time, `changed`, stay."""
    return fault_of(path, entry)
