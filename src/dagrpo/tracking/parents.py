"""Parent runs, one per seed, with runs of stages as children.

Stages that all seeds share belong to a separate run, `all seeds`; with a single seed, to that seed's. A configuration that is
trained again with other code has another run. Found by tags and never by remembered ids.
"""

from collections.abc import Iterable, Mapping

from dagrpo.tracking.attempt import FOLDER
from dagrpo.tracking.execution import SHARED, Execution
from dagrpo.tracking.names import flatten
from dagrpo.tracking.runs import PARENT, Run, Runs
from dagrpo.utils.files import canonical_json
from dagrpo.utils.locks import Process

NOTE = "mlflow.note.content"
VARIATION = "variation"
CONFIGURATION = "configuration"  # the digest of its parameters
OVERRIDE = "override."  # of a tag, before the key of a parameter
HEADLINE = "headline"
ERROR = "error"
ALL_SEEDS = "all seeds"
MOST_NAMED = 3  # changed parameters in the name of a run
ATTEMPT = "attempt"  # which of a stage's executions below a parent it is
ABOUT_MACHINES = ("git.", "version.", "hardware.", "environment.", "mlflow.source.git.", "mlflow.user")


def variation_tags(execution: Execution) -> dict[str, str]:
    """Return the tags that distinguish a variation's run from the experiment's own; {} for the latter."""
    overrides = execution.record.get("overrides", {})
    tags = {f"{OVERRIDE}{key}": canonical_json(value) for key, value in overrides.items()}
    return ({VARIATION: execution.variation} if execution.variation else {}) | tags


def varied_parameters(runs: Runs) -> set[str]:
    """Return the keys of the parameters that override runs of the experiment have changed."""
    tags = (name for run in runs.where(role="parent") for name in run.tags)
    return {name.removeprefix(OVERRIDE) for name in tags if name.startswith(OVERRIDE)}


def find_parent(runs: Runs, execution: Execution, seed: int | None) -> Run:
    """Return the run of a seed, or of all (None), in this execution's configuration; created if missing."""
    seeds = execution.configuration.get("seeds", [])
    whose = str(seeds[0]) if seed is None and len(seeds) == 1 else SHARED if seed is None else str(seed)
    same = {
        "role": "parent",
        "seed": whose,
        VARIATION: execution.variation,
        CONFIGURATION: execution.configuration.get("digest", ""),
    }
    for run in runs.where(role="parent", seed=whose):
        if all(run.tags.get(name, "") == value for name, value in same.items()) and not _is_of_other_code(
            run.tags, execution
        ):
            return run
    tags = {name: value for name, value in same.items() if value} | {"experiment": execution.experiment}
    title = _title(same, execution.record.get("overrides", {}))
    return runs.create(title, execution.started, tags | variation_tags(execution) | _about(execution))


def _title(tags: Mapping[str, str], overrides: Mapping[str, object]) -> str:
    """Return `seed 0, 403581bc`; of a variation its name or what it changes, `seed 0, steps=20`, in place of the digest."""
    seed = ALL_SEEDS if tags["seed"] == SHARED else f"seed {tags['seed']}"
    changed = [
        f"{key.rpartition('.')[2]}={canonical_json(value)}" for key, value in list(overrides.items())[:MOST_NAMED]
    ]
    more = [f"and {len(overrides) - MOST_NAMED} more"] if len(overrides) > MOST_NAMED else []
    named = [*changed, *more] or [tags[VARIATION] or tags[CONFIGURATION]]
    return ", ".join(filter(None, [seed, *named]))


def _is_of_other_code(tags: Mapping[str, str], execution: Execution) -> bool:
    """Return True if the run has curves of the same stage from other code: two curves would lie over each other."""
    stage = execution.stage
    return execution.trains and tags.get(f"{stage}.key", execution.key) != execution.key


def describe(parent: Run, execution: Execution) -> None:
    """Record the changed parameters, and the commit, versions and machine of an execution below a parent run."""
    parent.log(params=flatten(execution.configuration.get("changed", {})), tags=_about(execution))


def _about(execution: Execution) -> dict[str, str]:
    tags = {name: value for name, value in execution.facts.items() if name.startswith(ABOUT_MACHINES)}
    return tags | ({f"{execution.stage}.key": execution.key} if execution.trains else {})


def settle_parents(runs: Runs, working: Iterable[Execution] = ()) -> None:
    """Close the open parent runs without an active child: every sync ends with it, so that none stays open.

    working: executions at work, whose parents stay open, although no follower shows them yet.
    """
    busy = {find_parent(runs, execution, execution.record.get("seed")).run_id for execution in working}
    for parent in list(runs.where(role="parent")):
        if parent.status == "RUNNING" or parent.run_id in busy:
            _settle(runs, parent, is_busy=parent.run_id in busy)
    runs.flush()


def _settle(runs: Runs, parent: Run, *, is_busy: bool) -> None:
    """Close a parent unless a child runs; mark it failed, with the error message, if the latest run of a stage failed."""
    children = list(runs.where(role="stage", **{PARENT: parent.run_id}))
    for child in children:
        if child.status == "RUNNING" and "process.pid" in child.tags and is_abandoned(child.tags):
            child.close("KILLED")  # its end may be recorded at another MLFLOW_TRACKING_URI
    latest = _latest(children)
    status = next((s for s in ("RUNNING", "FAILED", "KILLED") if any(c.status == s for c in latest)), "FINISHED")
    failed = next((child for child in latest if child.status == "FAILED"), None)
    _set_note(parent, failed if status == "FAILED" else None)
    if is_busy:
        parent.reopen()
    elif status != "RUNNING":
        ends = [child.ended for child in children if child.ended]
        parent.close(status, max(ends, default=None))


def _latest(children: Iterable[Run]) -> list[Run]:
    """Return the last run of each stage and place, newest first: an earlier failure no longer counts."""
    latest: dict[str, Run] = {}
    for child in sorted(children, key=_order):
        latest[child.tags["identity"]] = child
    return sorted(latest.values(), key=_order, reverse=True)


def _order(run: Run) -> tuple[int, int]:
    """Return the second in which a run started, since an account has no milliseconds, and the number of its attempt."""
    return run.started // 1000, int(run.tags.get(ATTEMPT, 1))


def is_abandoned(tags: Mapping[str, str]) -> bool:
    """Return True if the process of an open run is gone and no note says how it ended. Another clone's may be alive."""
    process = _process_of(tags)
    has_note = "execution" in tags and (FOLDER / f"{tags['execution']}.json").exists()
    return not has_note and (process is None or process.is_gone)


def _process_of(tags: Mapping[str, str]) -> Process | None:
    """Return the process of the stage; None for a run that a sync has begun for results."""
    if "process.pid" not in tags:
        return None
    return Process(
        pid=int(tags["process.pid"]),
        started=float(tags["process.started"]),
        host=tags["process.host"],
        boot=tags.get("process.boot", ""),
        namespace=int(tags.get("process.namespace", 0)),
        slurm_job=tags.get("process.slurm_job", ""),
    )


def _set_note(parent: Run, failed: Run | None) -> None:
    """Set the description: why it failed, if it did, and the headline of its report, if there is one."""
    error = "" if failed is None else f"{failed.name}: {failed.tags.get(ERROR, 'no reason is on record')}"
    note = "\n\n".join(
        part for part in (f"**Failed.** {error}" if error else "", parent.tags.get(HEADLINE, "")) if part
    )
    new = {NOTE: note} if note or NOTE in parent.tags else {}
    parent.log(tags=new | ({ERROR: error} if error else {}))
    if not error:
        parent.remove_tag(ERROR)
