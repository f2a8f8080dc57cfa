"""Snakemake's command line, parsed before Snakemake reports it.

The Snakefile is read earlier.
"""

import os
import sys
from argparse import Namespace
from functools import lru_cache
from pathlib import Path, PurePath

from snakemake.cli import get_argument_parser

from dagrpo.core.errors import UserError
from dagrpo.tracking.variations import TRY
from dagrpo.utils.provenance import TOPS

# Options that ask for information or maintenance: nothing is run.
WITHOUT_JOBS = (
    "archive",
    "cleanup_metadata",
    "cleanup_shadow",
    "containerize",
    "d3dag",
    "dag",
    "delete_all_output",
    "delete_temp_output",
    "detailed_summary",
    "dryrun",
    "export_cwl",
    "filegraph",
    "generate_unit_tests",
    "lint",
    "list_changes",
    "list_rules",
    "list_target_rules",
    "list_untracked",
    "print_compilation",
    "report",
    "rulegraph",
    "summary",
    "unlock",
)


@lru_cache
def _asked() -> Namespace | None:
    """Parse Snakemake's command line; None if its API is used instead."""
    program = Path(sys.argv[0])
    if program.name != "snakemake" and program.parts[-2:] != ("snakemake", "__main__.py"):  # python -m snakemake
        return None
    return get_argument_parser().parse_args(sys.argv[1:])  # type: ignore[no-any-return]


def is_command() -> bool:
    """Return True for a typed `snakemake` command; False if its API plans jobs for dvc.yaml."""
    return _asked() is not None


def runs_jobs() -> bool:
    """Return True if this command may run jobs."""
    asked = _asked()
    return asked is not None and not any(getattr(asked, name, None) for name in WITHOUT_JOBS)


def wants_report() -> bool:
    """Return True if the targets are all outputs, or the report."""
    asked = _asked()
    return asked is not None and (
        not asked.targets or any(name == "target" or "/report/" in name for name in asked.targets)
    )


def require_own_targets(folder: str) -> None:
    """Raise UserError for a path that belongs to another experiment than this run's parameters."""
    asked = _asked()
    for target in asked.targets if asked is not None and "DVC_STAGE" not in os.environ else ():
        top, *inner = PurePath(target).parts or ("",)
        if top not in TOPS or not inner or inner[0] == folder:
            continue
        own = PurePath(top, folder, *inner[1:])
        if TRY in folder and inner[0] == folder.partition(TRY)[0]:
            raise UserError(f"{target} is not made with overrides: the place of this try is {own}.")
        raise UserError(
            f"{target} belongs to the experiment {inner[0]}, and this run is of {folder}: write that one's parameters to "
            f"params.yaml (`dagrpo use`), or ask for {own}."
        )
