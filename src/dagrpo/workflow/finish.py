"""Before the first and after the last job of a Snakemake run: the runs recorded in MLflow, the results shown."""

import os
import sys
from pathlib import Path

from rich.markdown import Markdown

from dagrpo.console import VisibleConsole, say
from dagrpo.errors import UserError
from dagrpo.execution.frame import dvc_drives
from dagrpo.files import json_text, read_text
from dagrpo.params.schema import Params, read_params
from dagrpo.workflow.configuration import PARAMS
from dagrpo.workflow.tries import Try, try_of

SECONDS_BETWEEN_SYNCS = 60  # under DVC
LAST_STAGE = "report"


def begin(a_try: Try) -> None:
    """Say that this is a try, and what makes it one."""
    if a_try.is_one:
        changes = ", ".join(f"{key}: {json_text(value).strip()}" for key, value in a_try.overrides.items())
        say(f"A try, with {changes}: it has folders of its own ({a_try.folder}), and DVC does not record it.")


def require_same_parameters(params: Params) -> None:
    """UserError where DVC drives and params.yaml has been edited meanwhile: DVC would record the result as made by that."""
    if dvc_drives() and try_of(params, read_params(PARAMS)).is_one:
        raise UserError(
            f"{PARAMS} was edited while this stage ran: what it made is not recorded. Run `dvc repro` again."
        )


def record_runs() -> None:
    """Bring what the stages have made into MLflow, whose import takes seconds; print why where that fails.

    Under DVC every stage is a workflow of its own: there the last stage does it, and one a minute on the way to it.
    """
    from dagrpo.tracking.sync import record_what_is_new

    is_last = os.environ.get("DVC_STAGE", LAST_STAGE).startswith(LAST_STAGE)
    trouble = record_what_is_new(0 if is_last else SECONDS_BETWEEN_SYNCS)
    if trouble:
        print(f"MLflow does not hold everything yet: {trouble}", file=sys.stderr)


def show_results(experiment: str) -> None:
    """The summary table of the report, and where to find the rest."""
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
