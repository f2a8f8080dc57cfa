"""Recording of executions in MLflow, whose import takes seconds."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dagrpo.core.errors import UserError
from dagrpo.tracking.contents import Contents
from dagrpo.tracking.execution import Execution
from dagrpo.tracking.parents import ERROR, settle_parents
from dagrpo.tracking.read import contents_of
from dagrpo.tracking.runs import Run, Runs, open_experiment
from dagrpo.tracking.stage_runs import INCOMPLETE, close_others, closed_run, digest_tags, is_complete, open_run
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
        runs = {name: open_experiment(client, name, artifacts) for name in names}
        count, incomplete = 0, set[str]()
        for each in counted(executions, "recording in MLflow"):
            is_missing, is_whole = _record(runs[each.experiment], each)
            count += is_missing
            incomplete |= set() if is_whole else {each.record["experiment"]}
        for name, own in runs.items():
            settle_parents(own, [each for each in executions if each.status == "RUNNING" and each.experiment == name])
    except UserError:
        raise
    except Exception as error:  # the border: a server or a database may answer anything
        logger.info("MLflow takes nothing", exc_info=error)
        raise UserError(f"{trouble_of_store(error, uri)}.") from error
    return Recorded(count=count, incomplete=frozenset(incomplete))


def _record(runs: Runs, execution: Execution) -> tuple[bool, bool]:
    """Record one execution; return whether it was missing, and whether it has its figures. An active one is left to its follower."""
    if execution.status == "RUNNING":
        return False, False
    own, begun = close_others(runs, execution), closed_run(runs, execution)
    is_there = own is None and begun is not None and is_complete(begun, execution)
    is_whole, is_missing = True, not execution.is_outdated and not is_there
    if is_missing:
        contents = _contents(execution)
        if execution.status == "FINISHED" and begun is not None and own is None and contents.missing:
            return False, False  # it is there, and its figures cannot be read yet
        write_run(runs, execution, contents, begun)
        is_whole = not contents.missing
    elif own is not None:  # killed after its last output was written, or before another made them
        own.close(execution.status, execution.ended)
    if execution.status != "FINISHED":
        remove(execution.source)
    return is_missing, is_whole


def write_run(runs: Runs, execution: Execution, contents: Contents, begun: Run | None = None) -> None:
    """Write the whole run of an execution, its status last: a run that was begun and not finished is found and continued."""
    run = open_run(runs, execution, begun)
    write_contents(Target(runs=runs, run=run, execution=execution), contents)
    tags = digest_tags("output", execution.outputs) if execution.outputs else {}
    tags |= {INCOMPLETE: contents.missing} if contents.missing else {}
    tags |= {ERROR: execution.error} if execution.error else {}
    run.log(tags=tags)
    if not contents.missing:
        run.remove_tag(INCOMPLETE)
    runs.flush()  # what its parent got too: a closed run is not written again
    run.close(execution.status, execution.ended)


def _contents(execution: Execution) -> Contents:
    """Return the contents of an execution's run; if its files cannot be read, none, and print a line."""
    try:
        return contents_of(execution)
    except Exception as error:  # noqa: BLE001  the border to files that may be gone, damaged or of another version
        say(f"{execution.source}: recorded without figures: {words_of(error)}")
        return Contents(missing=words_of(error))
