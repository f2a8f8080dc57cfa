"""Runs of executions in MLflow, below the run of their seed.

A seed has one parent run, for all attempts at its configuration; one that is trained again with other code has another. Stages that all
seeds share belong to a separate run, `all seeds`; with a single seed, to that seed's. Found by tags and never by remembered ids.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dagrpo.utils.files import canonical_json
from dagrpo.utils.locks import Process
from dagrpo_mlflow.attempt import FOLDER
from dagrpo_mlflow.execution import SHARED, Execution
from dagrpo_mlflow.names import digest_tags, flatten
from dagrpo_mlflow.runs import PARENT, Run, Runs

NOTE = "mlflow.note.content"
VARIATION = "variation"
CONFIGURATION = "configuration"  # the digest of its parameters
OVERRIDE = "override."  # of a tag, before the key of a parameter
HEADLINE = "headline"
ERROR = "error"
ALL_SEEDS = "all seeds"
MOST_NAMED = 3  # changed parameters in the name of a run
ATTEMPT = "attempt"  # which of a stage's executions below a parent it is
EXECUTION = "execution"  # the name of its note
PROCESS = "process"
INCOMPLETE = "incomplete"  # why a run has no figures; "": it has them
ABOUT_MACHINES = ("git.", "version.", "hardware.", "environment.", "mlflow.source.git.", "mlflow.user")
ABOUT_CURVES = (
    "The parent run of this seed has the curves. This run has the meaning of each metric (`metrics.json`), traces and the load of the "
    "machine."
)


def varied_parameters(runs: Runs) -> set[str]:
    """Return the keys of the parameters that override runs of the experiment have changed."""
    tags = (name for run in runs.where(role="parent") for name in run.tags)
    return {name.removeprefix(OVERRIDE) for name in tags if name.startswith(OVERRIDE)}


def find_parent(runs: Runs, execution: Execution, seed: int | None) -> Run:
    """Return the run of a seed, or of all (None), in this execution's configuration; created if missing."""
    seeds = execution.configuration.get("seeds", [])
    whose = str(seeds[0]) if seed is None and len(seeds) == 1 else SHARED if seed is None else str(seed)
    same = {VARIATION: execution.variation, CONFIGURATION: execution.configuration.get("digest", "")}
    for run in runs.where(role="parent", seed=whose):
        # Two curves of the same stage from other code would lie over each other.
        is_of_other_code = execution.trains and run.tags.get(f"{execution.stage}.key", execution.key) != execution.key
        if all(run.tags.get(name, "") == value for name, value in same.items()) and not is_of_other_code:
            return run
    tags = {"role": "parent", "seed": whose, "experiment": execution.experiment}
    tags |= {name: value for name, value in same.items() if value} | _variation_tags(execution) | _about(execution)
    return runs.create(_title(execution, whose), execution.started, tags)


def _variation_tags(execution: Execution) -> dict[str, str]:
    """Return the tags that distinguish a variation's run from the experiment's own; {} for the latter."""
    overrides = execution.record.get("overrides", {})
    tags = {f"{OVERRIDE}{key}": canonical_json(value) for key, value in overrides.items()}
    return ({VARIATION: execution.variation} if execution.variation else {}) | tags


def _title(execution: Execution, seed: str) -> str:
    """Return `seed 0, 403581bc`; of a variation its name or what it changes, `seed 0, steps=20`, in place of the digest."""
    overrides = execution.record.get("overrides", {})
    changed = [f"{key.rpartition('.')[2]}={canonical_json(value)}" for key, value in overrides.items()]
    more = [f"and {len(changed) - MOST_NAMED} more"] if len(changed) > MOST_NAMED else []
    named = [*changed[:MOST_NAMED], *more] or [execution.variation or execution.configuration.get("digest", "")]
    return ", ".join(filter(None, [ALL_SEEDS if seed == SHARED else f"seed {seed}", *named]))


def describe(parent: Run, execution: Execution) -> None:
    """Record the changed parameters, and the commit, versions and machine of an execution below a parent run."""
    parent.log(params=flatten(execution.configuration.get("changed", {})), tags=_about(execution))


def _about(execution: Execution) -> dict[str, str]:
    tags = {name: value for name, value in execution.facts.items() if name.startswith(ABOUT_MACHINES)}
    return tags | ({f"{execution.stage}.key": execution.key} if execution.trains else {})


def find_run(runs: Runs, execution: Execution) -> Run | None:
    """Return the run that a follower or an earlier sync has begun for this execution: by its note, or by what it has written."""
    outputs = digest_tags("output", execution.outputs).items()
    for run in runs.where(role="stage", key=execution.key):
        if execution.note and EXECUTION in run.tags:
            if run.tags[EXECUTION] == execution.note:
                return run
        elif execution.outputs and outputs <= run.tags.items():
            return run
    return None


def open_run(runs: Runs, execution: Execution, begun: Run | None = None) -> Run:
    """Return the run of an execution, created unless one was begun, with its parameters and the digests of its inputs.

    What an earlier execution of the same stage has left open is closed.
    """
    run = begun or find_run(runs, execution) or _create(runs, execution)
    _close_abandoned(each for each in runs.where(identity=execution.identity) if each is not run)
    describe(runs.by_id(run.tags[PARENT]), execution)
    run.log(params=flatten(execution.record["params"]), tags=digest_tags("input", execution.record["inputs"]))
    return run


def _create(runs: Runs, execution: Execution) -> Run:
    parent = find_parent(runs, execution, execution.record.get("seed"))
    parent.reopen()
    attempt = 1 + len(runs.where(**{PARENT: parent.run_id, "identity": execution.identity}))
    name = f"{execution.stage} {execution.place}".strip()
    name = f"{name}, attempt {attempt}" if attempt > 1 else name
    tags = _tags(execution) | {PARENT: parent.run_id, ATTEMPT: str(attempt)}
    return runs.create(name, execution.started, tags)


def _tags(execution: Execution) -> dict[str, Any]:
    record = execution.record
    tags: dict[str, Any] = {name: record[name] for name in ("stage", "key", "code")}
    tags |= {
        "experiment": execution.experiment,
        "role": "stage",
        "seed": execution.seed,
        "identity": execution.identity,
    }
    tags |= _variation_tags(execution) | digest_tags("output", execution.outputs)
    tags |= {"taken_from": record["taken_from"]} if "taken_from" in record else {}
    tags |= {EXECUTION: execution.note} if execution.note else {}
    tags |= {PROCESS: json.dumps(asdict(execution.process))} if execution.process else {}
    tags |= {NOTE: ABOUT_CURVES} if execution.trains else {}
    source = {"name": f"src/dagrpo/pipeline/stages/{record['stage']}.py", "type": "LOCAL"}
    return tags | {f"mlflow.source.{name}": value for name, value in source.items()} | dict(execution.facts)


def _close_abandoned(runs: Iterable[Run]) -> None:
    """Close as KILLED the open runs whose process is gone, and of which no note says how they ended. Another clone's may be alive."""
    for run in runs:
        is_gone = PROCESS not in run.tags or Process(**json.loads(run.tags[PROCESS])).is_gone
        if run.status == "RUNNING" and is_gone and not (FOLDER / f"{run.tags.get(EXECUTION)}.json").exists():
            run.close("KILLED")


def settle_parents(runs: Runs, working: Iterable[Execution] = ()) -> None:
    """Close the open parent runs without an active child: every sync ends with it, so that none stays open.

    working: executions at work, whose parents stay open, although no follower shows them yet.
    """
    busy = {find_parent(runs, execution, execution.record.get("seed")).run_id for execution in working}
    for parent in runs.where(role="parent"):
        if parent.status == "RUNNING" or parent.run_id in busy:
            _settle(runs, parent, is_busy=parent.run_id in busy)
    runs.flush()


def _settle(runs: Runs, parent: Run, *, is_busy: bool) -> None:
    """Close a parent unless a child runs; describe it by its report's headline and, if the latest run of a stage failed, by its error."""
    children = runs.where(role="stage", **{PARENT: parent.run_id})
    _close_abandoned(child for child in children if PROCESS in child.tags)
    latest = {child.tags["identity"]: child for child in sorted(children, key=_order)}.values()
    statuses = {child.status for child in latest}
    status = next((each for each in ("RUNNING", "FAILED", "KILLED") if each in statuses), "FINISHED")
    note = parent.tags.get(HEADLINE, "")
    if status == "FAILED":
        failed = max((child for child in latest if child.status == "FAILED"), key=_order)
        error = f"**Failed.** {failed.name}: {failed.tags.get(ERROR, 'no reason is on record')}"
        note = f"{error}\n\n{note}".strip()
    parent.log(tags={NOTE: note} if note or NOTE in parent.tags else {})
    if is_busy:
        parent.reopen()
    elif status != "RUNNING":
        parent.close(status, max((child.ended for child in children if child.ended), default=None))


def _order(run: Run) -> tuple[int, int]:
    """Return the second in which a run started, since an account has no milliseconds, and the number of its attempt."""
    return run.started // 1000, int(run.tags.get(ATTEMPT, 1))
