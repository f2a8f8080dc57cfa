"""Override runs: parameters that params.yaml lacks, such as `--config training__steps=3`.

An override run has its own folders, `data|models|results|logs/<name>~<digest>/`, so that it never touches the experiment's
outputs. DVC does not record it. The digest is that of all its parameters, so the same override run resumes where it stopped.
`--config experiment__name=<name>~<word>` gives it a name of one's own instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import configuration_digest, flat
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.tracking.variations import TRY

PARAMS = Path("params.yaml")


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
