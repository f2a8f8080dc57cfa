"""Hooks before and after a Snakemake run: MLflow records, results shown."""

import os
import sys
from pathlib import Path

from rich.markdown import Markdown

from dagrpo.config.schema import Params, read_params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.runner import dvc_drives
from dagrpo.pipeline.snakemake.configuration import PARAMS
from dagrpo.pipeline.trial_runs import Try, try_of
from dagrpo.utils.console import VisibleConsole, say
from dagrpo.utils.files import json_text, read_text

SECONDS_BETWEEN_SYNCS = 60  # under DVC
LAST_STAGE = "report"


def begin(a_try: Try) -> None:
    """Announce an override run, with its overrides."""
    if a_try.is_one:
        changes = ", ".join(f"{key}: {json_text(value).strip()}" for key, value in a_try.overrides.items())
        say(f"A try, with {changes}: it has folders of its own ({a_try.folder}), and DVC does not record it.")


def require_same_parameters(params: Params) -> None:
    """Raise UserError if params.yaml was edited while DVC drives: DVC would record the result as made by the edited file."""
    if dvc_drives() and try_of(params, read_params(PARAMS)).is_one:
        raise UserError(
            f"{PARAMS} was edited while this stage ran: what it made is not recorded. Run `dvc repro` again."
        )


def record_runs() -> None:
    """Bring the stages' results into MLflow, whose import takes seconds; print the reason if that fails.

    Under DVC every stage is a separate workflow: there the last stage does it, and one per minute before it.
    """
    from dagrpo.tracking.sync import record_what_is_new

    is_last = os.environ.get("DVC_STAGE", LAST_STAGE).startswith(LAST_STAGE)
    trouble = record_what_is_new(0 if is_last else SECONDS_BETWEEN_SYNCS)
    if trouble:
        print(f"MLflow does not hold everything yet: {trouble}", file=sys.stderr)


def show_results(experiment: str) -> None:
    """Print the report's summary table, and the paths of the other results."""
    report = Path("results") / experiment / "report"
    summary = report / "summary.md"
    if dvc_drives() or not summary.exists():
        return
    console = VisibleConsole(stderr=True)
    try:
        text = read_text(summary, "run the stage report again")
    except UserError as error:
        say(str(error))
        return
    console.print(Markdown(text))
    console.print(f"Report: {(report / 'report.html').resolve()}", soft_wrap=True)
    times = Path("logs") / experiment / "times.html"
    if times.exists():
        console.print(f"Made:   {times.resolve()}", soft_wrap=True)
    console.print("Runs:   make ui")
