"""Before the first and after the last job of a Snakemake run: DVC told what ran, MLflow too, the results shown."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from dagrpo.console import say
from dagrpo.errors import UserError
from dagrpo.execution.frame import RAN, dvc_drives
from dagrpo.files import json_text, read_json, sha256_of
from dagrpo.params.schema import Params, read_params
from dagrpo.workflow.agreement import is_by
from dagrpo.workflow.configuration import PARAMS
from dagrpo.workflow.dvc_file import CHECK_STAGE
from dagrpo.workflow.tries import Try

SECONDS_TO_SETTLE = 60
SECONDS_BETWEEN_DELIVERIES = 60  # under DVC
LAST_STAGE = "report"


def begin(a_try: Try) -> None:
    """Say that this is a try, or that a run that was killed left something over; not when DVC drives, which commits by itself."""
    if dvc_drives():
        return
    if a_try.is_one:
        changes = ", ".join(f"{key}: {json_text(value).strip()}" for key, value in a_try.overrides.items())
        say(f"A try, with {changes}: it has folders of its own ({a_try.folder}), and DVC does not record it.")
    elif _left_over(a_try.folder):
        say("An earlier run was interrupted: what it finished is kept and will be committed to DVC.")


def commit(folder: str) -> None:
    """Record in DVC the outputs of the jobs that ran, and only those: others may be stale.

    Not when DVC is driving, which records them itself; of a try there are none.
    """
    if dvc_drives() or not Path(".dvc").is_dir():
        return
    entries = _left_over(folder)
    if entries:
        params = read_params(PARAMS)
        _commit_to_dvc([Path(output) for entry in entries for output in _recordable(entry, params)])
    for entry in entries:
        entry.unlink()


def _recordable(entry: Path, params: Params) -> list[str]:
    """`still_current`; none where a killed run or somebody else has damaged the entry or its provenance."""
    try:
        return still_current(entry, params)
    except (UserError, KeyError, TypeError, AttributeError) as error:
        print(
            f"Not recorded in DVC: {entry} cannot be read ({error}): what it names will be made again.", file=sys.stderr
        )
        return []


def settle_tracking() -> None:
    """Deliver what the stages recorded to MLflow, whose import takes seconds; say so when it cannot be reached.

    Under DVC every stage is a workflow of its own: there the last stage delivers, and one a minute on the way to it.
    """
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
    console = Console(stderr=True)
    console.print(Markdown(summary.read_text(encoding="utf-8")))
    console.print(f"Report: {(report / 'report.html').resolve()}", soft_wrap=True)
    console.print("Runs:   make ui")


def _left_over(folder: str) -> list[Path]:
    return sorted((RAN / folder).glob("*.json"))


def still_current(entry: Path, params: Params) -> list[str]:
    """The outputs of a journal entry, if today's inputs, parameters and code would make them again; else none.

    A run with overrides, or one that was killed before an edit, leaves entries that are not: DVC would record their
    outputs as made by the inputs, params.yaml and code of now.
    """
    ran = read_json(entry)
    provenance = Path(ran["provenance"])
    record = read_json(provenance) if provenance.exists() else {}
    if record.get("key") != ran["key"]:
        return []
    return list(ran["outputs"]) if is_by(record, params) and _are_as_recorded(record["inputs"]) else []


def _are_as_recorded(digests: Mapping[str, str]) -> bool:
    return all(Path(path).is_file() and sha256_of(Path(path)) == digest for path, digest in digests.items())


def _commit_to_dvc(outputs: list[Path]) -> None:
    """`dvc commit` for the stages that own these outputs; a re-link would rewrite files and make Snakemake rerun."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)  # it says once per stage that it writes dvc.lock
    with Repo(".") as repo:
        stages = {
            stage.addressing
            for stage in repo.index.stages
            for out in stage.outs
            if any(Path(str(out.def_path)) in (output, *output.parents) for output in outputs)
        }
        stages |= {stage.addressing for stage in repo.index.stages if stage.addressing.startswith(f"{CHECK_STAGE}@")}
        for stage in sorted(stages):
            try:
                repo.commit(target=stage, force=True, relink=False)
            except DvcException as error:  # such as an input that is gone: one stage's trouble is not the others'
                print(f"Not recorded in DVC: {stage}: {error}", file=sys.stderr)
