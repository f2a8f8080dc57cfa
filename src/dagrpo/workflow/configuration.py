"""Snakemake's config as checked parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from dagrpo.params.overlay import with_overrides
from dagrpo.params.schema import Params, parse, read_params, read_yaml

PARAMS = Path("params.yaml")


def require_readable() -> None:
    """Refuse a params.yaml that is missing or not YAML in a sentence that names it, before Snakemake reads it."""
    try:
        read_yaml(PARAMS)
    except ValueError as error:
        raise WorkflowError(str(error)) from None


def checked(config: Mapping[str, Any]) -> Params:
    """params.yaml with whatever --config and --configfile laid over it; WorkflowError, which Snakemake shows as it is."""
    try:
        return parse(with_overrides(config))
    except ValueError as error:
        raise WorkflowError(str(error)) from None


def differs_from_file(params: Params) -> bool:
    """Whether this run's parameters are not those that params.yaml holds."""
    return params != read_params(PARAMS)
