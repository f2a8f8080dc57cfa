"""Snakemake's config as checked parameters, with readable errors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from snakemake.exceptions import WorkflowError

from dagrpo.config.overlay import with_overrides
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.validation import parse_with_tasks
from dagrpo.utils.failures import sentence_of
from dagrpo.utils.yaml_text import read_yaml

PARAMS = Path("params.yaml")
T = TypeVar("T")


class Refusal(WorkflowError):  # type: ignore[misc]  # Snakemake has no types
    """A user's mistake found while the Snakefile is read. The screen recognises it by this name and shows its message alone."""


def told_by_snakemake(ask: Callable[[], T]) -> T:
    """Return the result of `ask`; raise Refusal, with which Snakemake ends, for an error that the user can fix."""
    try:
        return ask()
    except (UserError, OSError) as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
    raise Refusal(sentence)


def require_readable() -> None:
    """Raise Refusal naming a params.yaml that is missing or not YAML, before Snakemake reads it."""
    told_by_snakemake(lambda: read_yaml(PARAMS))


def checked(config: Mapping[str, Any]) -> Params:
    """Return params.yaml overlaid with --config and --configfile, checked against the schema and the tasks."""
    source = str(PARAMS) if config == read_yaml(PARAMS) else f"{PARAMS} with --config"
    return told_by_snakemake(lambda: parse_with_tasks(with_overrides(config), source))
