"""Snakemake's config as checked parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrpo.params.overlay import with_overrides
from dagrpo.params.schema import Params, parse, read_params

PARAMS = Path("params.yaml")


def checked(config: Mapping[str, Any]) -> Params:
    """params.yaml with whatever --config and --configfile laid over it; ValueError before any work starts."""
    return parse(with_overrides(config))


def differs_from_file(params: Params) -> bool:
    """Whether this run's parameters are not those that params.yaml holds."""
    return params != read_params(PARAMS)
