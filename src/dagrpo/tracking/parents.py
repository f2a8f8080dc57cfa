"""Parent runs, one per seed, with runs of stages as children.

Stages that all seeds share belong to a separate run, `all seeds`; with a single seed, to that seed's. A configuration that is
trained again with other code has another run. Found by tags and never by remembered ids.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow.entities import Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.tracking import MlflowClient

from dagrpo.tracking.execution import SHARED, Execution
from dagrpo.tracking.names import flatten, tag_value
from dagrpo.utils.files import canonical_json

PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
VARIATION = "variation"
CONFIGURATION = "configuration"  # the digest of its parameters
HEADLINE = "headline"
ERROR = "error"
ALL_SEEDS = "all seeds"
ATTEMPT = "attempt"  # which of a stage's executions below a parent it is
ABOUT_MACHINES = ("git.", "version.", "hardware.", "environment.", "mlflow.source.git.", "mlflow.user")
PLAIN = re.compile(r"[\w.~ -]*")  # may stand in a filter
ENTRIES_PER_BATCH = 100  # params or tags: MLflow's limit


def batches(entries: Sequence[Any]) -> list[Sequence[Any]]:
    """Cut params or tags into batches that MLflow takes in one call."""
    return [entries[start : start + ENTRIES_PER_BATCH] for start in range(0, len(entries), ENTRIES_PER_BATCH)]


def variation_tags(execution: Execution) -> dict[str, str]:
    """Return the tags that distinguish a variation's run from the experiment's own; {} for the latter."""
    overrides = execution.record.get("overrides", {})
    tags = {f"override.{key}": tag_value(canonical_json(value)) for key, value in overrides.items()}
    return ({VARIATION: execution.variation} if execution.variation else {}) | tags


def find_parent(client: MlflowClient, experiment_id: str, execution: Execution, seed: int | None) -> str:
    """Return the id of the run of a seed, or of all (None), in this execution's configuration; created if missing."""
    seeds = execution.configuration.get("seeds", [])
    whose = str(seeds[0]) if seed is None and len(seeds) == 1 else SHARED if seed is None else str(seed)
    same = {
        "role": "parent",
        "seed": whose,
        VARIATION: execution.variation,
        CONFIGURATION: execution.configuration.get("digest", ""),
    }
    # Few of many variations: an empty value stands for a tag that is missing, which no filter asks for.
    conditions = [f"tags.{name} = '{value}'" for name, value in same.items() if PLAIN.fullmatch(value) and value]
    for run in all_runs(client, experiment_id, " and ".join(conditions)):
        tags = run.data.tags
        if all(tags.get(name, "") == value for name, value in same.items()) and not _is_of_other_code(tags, execution):
            return str(run.info.run_id)
    tags = {name: value for name, value in same.items() if value} | {"experiment": execution.experiment}
    tags |= variation_tags(execution)
    run = client.create_run(experiment_id, execution.started, tags, _title(same))
    return str(run.info.run_id)


def _title(tags: Mapping[str, str]) -> str:
    """Return `seed 0, 403581bc`; before the digest the name of a variation."""
    seed = ALL_SEEDS if tags["seed"] == SHARED else f"seed {tags['seed']}"
    named = [tags[VARIATION]] if tags[VARIATION] else []
    digest = tags[CONFIGURATION]
    suffix = [] if not digest or any(digest in name for name in named) else [digest]
    return ", ".join([seed, *named, *suffix])


def _is_of_other_code(tags: Mapping[str, str], execution: Execution) -> bool:
    """Return True if the run has curves of the same stage from other code: two curves would lie over each other."""
    stage = execution.stage
    return execution.trains and tags.get(f"{stage}.key", execution.key) != execution.key


def describe(client: MlflowClient, parent: str, execution: Execution) -> None:
    """Record the changed parameters, and the commit, versions and machine of an execution below a parent run."""
    changed = flatten(execution.configuration.get("changed", {}))
    for params in batches([Param(name, value) for name, value in changed.items()]):
        client.log_batch(parent, params=params)
    tags = {name: value for name, value in execution.facts.items() if name.startswith(ABOUT_MACHINES)}
    if execution.trains:
        tags[f"{execution.stage}.key"] = execution.key
    client.log_batch(parent, tags=[RunTag(name, tag_value(value)) for name, value in tags.items()])


def settle_parents(client: MlflowClient, experiment_id: str) -> None:
    """Close the open parent runs without an active child: every sync ends with it, so that none stays open."""
    for run in list(all_runs(client, experiment_id, "tags.role = 'parent' and attributes.status = 'RUNNING'")):
        settle_parent(client, run.info.run_id)


def settle_parent(client: MlflowClient, parent: str) -> None:
    """Close a parent unless a child runs; mark it failed, with the error message, if the latest run of a stage failed."""
    run = client.get_run(parent)
    latest = _latest_unfinished(client, run)
    status = next((s for s in ("RUNNING", "FAILED", "KILLED") if any(c.info.status == s for c in latest)), "FINISHED")
    failed = next((child for child in latest if child.info.status == "FAILED"), None)
    _set_note(client, run, failed if status == "FAILED" else None)
    if status != "RUNNING":
        client.set_terminated(parent, status, _end_of_children(client, run))


def _latest_unfinished(client: MlflowClient, parent: MlflowRun) -> list[MlflowRun]:
    """Return the last run of each stage and place that has a run without success: an earlier failure no longer counts.

    Children that finished are not fetched: a seed may have hundreds.
    """
    experiment_id, below = parent.info.experiment_id, f"tags.`{PARENT}` = '{parent.info.run_id}'"
    unfinished = list(all_runs(client, experiment_id, f"{below} and attributes.status != 'FINISHED'"))
    identities = dict.fromkeys(child.data.tags["identity"] for child in unfinished)
    attempts = (all_runs(client, experiment_id, f"{below} and tags.identity = '{each}'") for each in identities)
    return sorted((max(each, key=_order) for each in attempts), key=_order, reverse=True)


def _end_of_children(client: MlflowClient, parent: MlflowRun) -> int | None:
    below, order = f"tags.`{PARENT}` = '{parent.info.run_id}'", ["attributes.end_time DESC"]
    last = client.search_runs([parent.info.experiment_id], below, order_by=order, max_results=1)
    return (last[0].info.end_time or None) if last else None


def all_runs(client: MlflowClient, experiment_id: str, filter_string: str) -> Iterator[MlflowRun]:
    """Yield the runs of an experiment that match a filter, newest first."""
    token = None
    while True:
        order = ["attributes.start_time DESC"]
        page = client.search_runs([experiment_id], filter_string, order_by=order, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _order(run: MlflowRun) -> tuple[int, int]:
    """Return the second in which a run started, since an account has no milliseconds, and the number of its attempt."""
    return run.info.start_time // 1000, int(run.data.tags.get(ATTEMPT, 1))


def _set_note(client: MlflowClient, parent: MlflowRun, failed: MlflowRun | None) -> None:
    """Set the description: why it failed, if it did, and the headline of its report, if there is one."""
    tags = parent.data.tags
    error = "" if failed is None else f"{failed.info.run_name}: {failed.data.tags.get(ERROR, 'no reason is on record')}"
    note = "\n\n".join(part for part in (f"**Failed.** {error}" if error else "", tags.get(HEADLINE, "")) if part)
    if tags.get(NOTE, "") != note:
        client.set_tag(parent.info.run_id, NOTE, tag_value(note))
    if error:
        client.set_tag(parent.info.run_id, ERROR, tag_value(error))
    elif ERROR in tags:
        client.delete_tag(parent.info.run_id, ERROR)
