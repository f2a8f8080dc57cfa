"""Snakemake's config as checked parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.params.overlay import undotted
from dagrpo.params.schema import Params, parse, read_params

PARAMS = Path("params.yaml")


def checked(config: Mapping[str, Any]) -> Params:
    """params.yaml with whatever --config and --configfile laid over it; ValueError before any work starts."""
    return parse(
        undotted(config), "params.yaml (with --config and --configfile)" if _overridden(config) else "params.yaml"
    )


def _overridden(config: Mapping[str, Any]) -> bool:
    return any("." in key for key in config)


def differs_from_file(params: Params) -> bool:
    """Whether this run's parameters are not those that params.yaml holds."""
    return params != read_params(PARAMS)
