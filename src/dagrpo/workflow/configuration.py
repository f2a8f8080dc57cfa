"""Snakemake's config as checked parameters, and our sentences as errors that Snakemake shows as they are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from snakemake.exceptions import WorkflowError

from dagrpo.errors import UserError
from dagrpo.params.overlay import with_overrides
from dagrpo.params.schema import Params, read_params, read_yaml
from dagrpo.workflow.forms import parse_with_tasks, require_single_turn

PARAMS = Path("params.yaml")
T = TypeVar("T")


def told_by_snakemake(ask: Callable[[], T]) -> T:
    """What `ask` returns; its UserError as a WorkflowError, which Snakemake shows with the lines of rules that led to it."""
    try:
        return ask()
    except UserError as error:
        sentence = str(error)
    raise WorkflowError(sentence)


def require_readable() -> None:
    """Refuse a params.yaml that is missing or not YAML in a sentence that names it, before Snakemake reads it."""
    told_by_snakemake(lambda: read_yaml(PARAMS))


def checked(config: Mapping[str, Any]) -> Params:
    """params.yaml with whatever --config and --configfile laid over it, checked against the schema and the tasks."""
    return told_by_snakemake(lambda: parse_with_tasks(with_overrides(config)))


def split_for_rollouts(task: str, path: str) -> str:
    """The path of a split whose problems are to be completed; an error for a task that takes more than one turn."""
    told_by_snakemake(lambda: require_single_turn(task))
    return path


def differs_from_file(params: Params) -> bool:
    """Whether params.yaml holds other parameters than this run has. Section runtime changes no result and does not count."""
    held = read_params(PARAMS)
    return params != held.model_copy(update={"runtime": params.runtime})
