"""Snakemake's config as checked parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from dagrpo.errors import UserError
from dagrpo.params.overlay import with_overrides
from dagrpo.params.schema import Params, parse, read_params, read_yaml
from dagrpo.workflow.forms import require_fitting_tasks, require_single_turn

PARAMS = Path("params.yaml")


def require_readable() -> None:
    """Refuse a params.yaml that is missing or not YAML in a sentence that names it, before Snakemake reads it."""
    try:
        read_yaml(PARAMS)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def checked(config: Mapping[str, Any]) -> Params:
    """params.yaml with whatever --config and --configfile laid over it; WorkflowError, which Snakemake shows as it is."""
    try:
        params = parse(with_overrides(config))
        require_fitting_tasks(params)
    except UserError as error:
        raise WorkflowError(str(error)) from None
    return params


def split_for_rollouts(task: str, path: str) -> str:
    """The path of a split whose problems are to be completed; WorkflowError for a task that takes more than one turn."""
    try:
        require_single_turn(task)
    except UserError as error:
        raise WorkflowError(str(error)) from None
    return path


def differs_from_file(params: Params) -> bool:
    """Whether this run's parameters are not those that params.yaml holds."""
    return params != read_params(PARAMS)
