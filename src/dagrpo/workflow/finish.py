"""Before the first and after the last job of a Snakemake run: MLflow told what ran, the results shown."""

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

SECONDS_TO_SETTLE = 60
SECONDS_BETWEEN_DELIVERIES = 60  # under DVC
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


def settle_tracking() -> None:
    """Deliver what the stages recorded to MLflow, whose import takes seconds; say so when it cannot be reached.

    Under DVC every stage is a workflow of its own: there the last stage delivers, and one a minute on the way to it.
    """
    try:
        _settle_tracking()
    except Exception as error:  # noqa: BLE001  the border between the results, which are there, and their record
        print(f"MLflow does not hold everything yet: {type(error).__name__}: {error}", file=sys.stderr)


def _settle_tracking() -> None:
    from dagrpo.tracking.delivery import last_trouble, seconds_waiting, settle
    from dagrpo.tracking.variations import recording_root

    if (os.environ.get("DAGRPO_TRACKING") or "on") != "on":
        return
    is_last = os.environ.get("DVC_STAGE", LAST_STAGE).startswith(LAST_STAGE)
    root = recording_root(Path.cwd())
    if not is_last and seconds_waiting(root) < SECONDS_BETWEEN_DELIVERIES:
        return
    if not settle(root, timeout_s=SECONDS_TO_SETTLE):
        print(f"MLflow does not hold everything yet: {last_trouble(root)}", file=sys.stderr)


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
