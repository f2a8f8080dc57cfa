"""Recording of executions in MLflow, whose import takes seconds."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow.tracking import MlflowClient

from dagrpo.core.errors import UserError
from dagrpo.tracking.contents import Contents
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.names import tag_value
from dagrpo.tracking.parents import ERROR, settle_parents
from dagrpo.tracking.read import contents_of
from dagrpo.tracking.stage_runs import INCOMPLETE, StageRuns, close_others, find_experiment, open_run, tag_digests
from dagrpo.tracking.store import open_client, trouble_of_store
from dagrpo.tracking.write import Target, write_contents
from dagrpo.utils.console import counted, say
from dagrpo.utils.failures import words_of
from dagrpo.utils.files import remove

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Result of a sync."""

    count: int  # of executions that MLflow lacked
    incomplete: frozenset[str]  # experiments and override runs with an execution whose figures cannot be read yet


def record_all(uri: str, executions: Sequence[Execution], artifacts: str | None) -> Recorded:
    """Record the executions that MLflow lacks, in their order.

    artifacts: the folder for files of new experiments; None: the server decides. Raises UserError if MLflow takes nothing now.
    """
    try:
        client = open_client(uri)
        names = dict.fromkeys(execution.experiment for execution in executions)
        experiments = {name: find_experiment(client, name, artifacts) for name in names}
        runs = {name: StageRuns(client, experiment_id) for name, experiment_id in experiments.items()}
        count, incomplete = 0, set[str]()
        for each in counted(executions, "recording in MLflow"):
            is_missing, is_complete = _record(client, experiments[each.experiment], each, runs[each.experiment])
            count += is_missing
            incomplete |= set() if is_complete else {each.record["experiment"]}
        for experiment_id in experiments.values():
            settle_parents(client, experiment_id)
    except UserError:
        raise
    except Exception as error:  # the border: a server or a database may answer anything
        logger.info("MLflow takes nothing", exc_info=error)
        raise UserError(f"{trouble_of_store(error, uri)}.") from error
    return Recorded(count=count, incomplete=frozenset(incomplete))


def _record(client: MlflowClient, experiment_id: str, execution: Execution, runs: StageRuns) -> tuple[bool, bool]:
    """Record one execution; return whether it was missing, and whether it has its figures. An active one is left to its follower."""
    if execution.status == "RUNNING":
        return False, False
    own = close_others(client, experiment_id, execution) if runs.have_open(execution) else None
    is_complete, is_missing = True, not execution.is_outdated and (own is not None or not runs.have(execution))
    if is_missing:
        contents, begun = _contents(execution), runs.begun(execution)
        if execution.status == "FINISHED" and begun is not None and own is None and contents.missing:
            return False, False  # it is there, and its figures cannot be read yet
        write_run(client, experiment_id, execution, contents, begun)
        is_complete = not contents.missing
    elif own is not None:  # killed after its last output was written, or before another made them
        client.set_terminated(own, execution.status, execution.ended)
    if execution.status != "FINISHED":
        remove(execution.source)
    return is_missing, is_complete


def write_run(
    client: MlflowClient, experiment_id: str, execution: Execution, contents: Contents, begun: str | None = None
) -> None:
    """Write the whole run of an execution, its status last: a run that was begun and not finished is found and continued."""
    run = open_run(client, experiment_id, execution, begun)
    run_id = run.info.run_id
    write_contents(Target(client=client, experiment_id=experiment_id, run=run, execution=execution), contents)
    if execution.outputs:
        tag_digests(client, run_id, "output", execution.outputs)
    if contents.missing:
        client.set_tag(run_id, INCOMPLETE, tag_value(contents.missing))
    elif INCOMPLETE in run.data.tags:
        client.delete_tag(run_id, INCOMPLETE)
    if execution.error:
        client.set_tag(run_id, ERROR, tag_value(execution.error))
    client.set_terminated(run_id, execution.status, execution.ended)


def _contents(execution: Execution) -> Contents:
    """Return the contents of an execution's run; if its files cannot be read, none, and print a line."""
    try:
        return contents_of(execution)
    except Exception as error:  # noqa: BLE001  the border to files that may be gone, damaged or of another version
        say(f"{execution.source}: recorded without figures: {words_of(error)}")
        return Contents(missing=words_of(error))
