"""Override runs: parameters that params.yaml lacks, such as `--config training__steps=3`.

An override run has its own folders, `data|models|results|logs/<name>~<digest>/`, so that it never touches the experiment's
outputs. DVC does not record it. The digest is that of all its parameters, so the same override run resumes where it stopped.
`--config experiment__name=<name>~<word>` gives it a name of one's own instead.

The cells of a sweep are override runs, too. Their digest is that of the swept values alone: another seed, more steps or another
evaluation in params.yaml extends a cell where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import DIGITS, configuration_digest, flat, merged, with_keys
from dagrpo.config.schema import Params
from dagrpo.config.sweeps import Cell, Sweep
from dagrpo.core.errors import UserError
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.files import digest_of

PARAMS = Path("params.yaml")
TRY = "~"  # in the folder name of an override run, before the digest of its parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideRun:
    """The differences of a run from the experiment of params.yaml, except section runtime, which changes no result."""

    folder: str  # name of the experiment, or <name>~<digest>, or <name>~<word>
    overrides: Mapping[str, Any]  # by dotted key; empty for the experiment itself


def override_run(params: Params, file: Params) -> OverrideRun:
    """Compare a run's parameters with those of params.yaml. Raises UserError if params.yaml has the name of an override run."""
    if TRY in file.experiment.name:
        raise UserError(
            f"{PARAMS}: experiment.name is {file.experiment.name}, and {TRY} stands in names of override runs alone: correct it, or give "
            f"`--config experiment__name={file.experiment.name}`."
        )
    own, other = (flat(each.model_dump(exclude={"runtime"})) for each in (params, file))
    overrides = {key: value for key, value in own.items() if key not in other or other[key] != value}
    overrides |= {key: None for key in other if key not in own}
    name = params.experiment.name
    folder = f"{name}{TRY}{configuration_digest(params)}" if overrides and TRY not in name else name
    return OverrideRun(folder=folder, overrides=overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """A cell of a sweep: its values, and the run of the experiment with them."""

    values: Cell  # by dotted key, as the sweep gives them
    params: Params
    run: OverrideRun


def cell_runs(sweep: Sweep, file: Params) -> list[CellRun]:
    """List the cells of a sweep over the experiment of params.yaml; one that changes nothing is the experiment itself.

    Raises UserError naming the cell whose parameters do not fit together.
    """
    cells = (_cell_run(values, sweep.seeds, file) for values in sweep.all_cells())
    return list({cell.run.folder: cell for cell in cells}.values())


def _cell_run(values: Cell, seeds: list[int] | None, file: Params) -> CellRun:
    whole = file.model_dump() if seeds is None else merged(file.model_dump(), {"experiment": {"seeds": seeds}})
    whole = with_keys(whole, values)
    source = f"the cell {', '.join(f'{key}: {value}' for key, value in values.items())}"
    params = parse_with_tasks(whole, source)
    if params.experiment.train_tasks != file.experiment.train_tasks:
        tasks = ", ".join(f"{task}: 1" for task in file.experiment.train_tasks)
        raise UserError(
            f"{source}: every cell trains on the tasks of experiment.train in {PARAMS}: name all of them, of which some may have the share "
            f"0, as in {{{tasks}}}."
        )
    if not override_run(params, file).overrides:
        return CellRun(values=values, params=params, run=override_run(params, file))
    parts = tuple(f"{key}." for key in values)
    swept = {key: value for key, value in flat(params.model_dump()).items() if f"{key}.".startswith(parts)}
    name = f"{file.experiment.name}{TRY}{digest_of(swept)[:DIGITS]}"
    params = parse_with_tasks(merged(whole, {"experiment": {"name": name}}), source)
    return CellRun(values=values, params=params, run=override_run(params, file))
