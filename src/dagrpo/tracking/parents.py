"""The run that stands for a seed of a configuration: what a history opens with. The runs of stages are its children.

Stages that all seeds share belong to a run of their own, `all seeds`; where there is one seed only, to that seed's. A
configuration that is trained again with other code has another run. Found by tags and never by remembered ids, so that any
process may take over. Callers hold the delivery's lock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.tracking import MlflowClient

from dagrpo.files import canonical_json
from dagrpo.tracking.events import Event
from dagrpo.tracking.names import flatten, tag_value
from dagrpo.tracking.variations import experiment_name

PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
VARIATION = "variation"
CONFIGURATION = "configuration"
HEADLINE = "headline"
ERROR = "error"
SHARED = "shared"  # the seed of stages that all seeds share
ALL_SEEDS = "all seeds"
ATTEMPT = "attempt"  # which of a stage's executions below a parent it is
CURVES = "curves"  # the stage whose points the run has
WITH_CURVES = ("train", "sft")
ABOUT_MACHINES = ("git.", "version.", "hardware.", "environment.", "mlflow.source.git.", "mlflow.user")
ENTRIES_PER_BATCH = 100  # params or tags: MLflow's limit


def seed_tag(record: Mapping[str, Any]) -> str:
    """`0`, `1`, ..., or `shared`."""
    return SHARED if record["seed"] is None else str(record["seed"])


def variation_tags(record: Mapping[str, Any], variation: str) -> dict[str, str]:
    """What tells the run of a variation from the experiment's own; nothing for those."""
    overrides = {
        f"override.{key}": tag_value(canonical_json(value)) for key, value in record.get("overrides", {}).items()
    }
    return ({VARIATION: variation} if variation else {}) | overrides


def find_parent(client: MlflowClient, experiment_id: str, start: Event, seed: int | None) -> str:
    """The id of the run that a stage's run belongs to, or that stands for another seed; made if there is none.

    `start`: the first event of the stage's journal.
    """
    record, about = start["record"], start.get(CONFIGURATION, {})
    seeds = about.get("seeds", [])
    whose = str(seeds[0]) if seed is None and len(seeds) == 1 else SHARED if seed is None else str(seed)
    same = {
        "role": "parent",
        "seed": whose,
        VARIATION: start.get(VARIATION, ""),
        CONFIGURATION: about.get("digest", ""),
    }
    filter_string = f"tags.role = 'parent' and tags.seed = '{whose}'"
    for run in client.search_runs([experiment_id], filter_string, order_by=["attributes.start_time DESC"]):
        tags = run.data.tags
        if all(tags.get(name, "") == value for name, value in same.items()) and not _is_of_other_code(tags, record):
            return str(run.info.run_id)
    tags = {name: value for name, value in same.items() if value} | {"experiment": experiment_name(record)}
    tags |= variation_tags(record, start.get(VARIATION, ""))
    run = client.create_run(experiment_id, start["time"], tags, _title(same))
    return str(run.info.run_id)


def _title(tags: Mapping[str, str]) -> str:
    """`seed 0, 403581bc`; before the digest the name of a DVC experiment."""
    seed = ALL_SEEDS if tags["seed"] == SHARED else f"seed {tags['seed']}"
    named = [tags[VARIATION]] if tags[VARIATION] else []
    digest = tags[CONFIGURATION]
    shown = [] if not digest or any(digest in name for name in named) else [digest]
    return ", ".join([seed, *named, *shown])


def _is_of_other_code(tags: Mapping[str, str], record: Mapping[str, Any]) -> bool:
    """Whether the run has the curves of the same stage made from something else: two curves would lie over each other."""
    stage, key = record["stage"], record["key"]
    return stage in WITH_CURVES and tags.get(f"{stage}.key", key) != key


def describe(client: MlflowClient, parent: str, start: Event) -> None:
    """What is known when a stage begins: the changed parameters, commit, versions and machine."""
    record, about = start["record"], start.get(CONFIGURATION, {})
    params = [Param(name, value) for name, value in flatten(about.get("changed", {})).items()]
    for first in range(0, len(params), ENTRIES_PER_BATCH):
        client.log_batch(parent, params=params[first : first + ENTRIES_PER_BATCH])
    tags = {name: value for name, value in start["tags"].items() if name.startswith(ABOUT_MACHINES)}
    if record["stage"] in WITH_CURVES:
        tags[f"{record['stage']}.key"] = record["key"]
    client.log_batch(parent, tags=[RunTag(name, tag_value(value)) for name, value in tags.items()])


def settle_parent(client: MlflowClient, parent: str, time_ms: int = 0) -> None:
    """How the whole stands: running while any child runs; failed, with its sentence, where the latest run of a stage is.

    `time_ms`: the end of a run without children.
    """
    run = client.get_run(parent)
    latest = _latest(_children(client, run))
    status = next((s for s in ("RUNNING", "FAILED", "KILLED") if any(c.info.status == s for c in latest)), "FINISHED")
    failed = next((child for child in latest if child.info.status == "FAILED"), None)
    _tell(client, run, failed if status == "FAILED" else None)
    if status != "RUNNING":
        end = max((child.info.end_time or 0 for child in latest), default=time_ms)
        client.set_terminated(parent, status, end or None)


def _children(client: MlflowClient, parent: MlflowRun) -> list[MlflowRun]:
    """Newest first."""
    found, token = [], None
    while True:
        page = client.search_runs(
            [parent.info.experiment_id],
            f"tags.`{PARENT}` = '{parent.info.run_id}'",
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def _latest(children: Sequence[MlflowRun]) -> list[MlflowRun]:
    """The last run of each stage and place: one that was mended counts no more."""
    last: dict[str, MlflowRun] = {}
    for child in children:
        last.setdefault(child.data.tags.get("identity", child.info.run_id), child)
    return list(last.values())


def _tell(client: MlflowClient, parent: MlflowRun, failed: MlflowRun | None) -> None:
    """The description: why it failed, if it did, and the headline of its report, if there is one."""
    tags = parent.data.tags
    error = "" if failed is None else f"{failed.info.run_name}: {failed.data.tags.get(ERROR, 'no reason is on record')}"
    note = "\n\n".join(part for part in (f"**Failed.** {error}" if error else "", tags.get(HEADLINE, "")) if part)
    if tags.get(NOTE, "") != note:
        client.set_tag(parent.info.run_id, NOTE, tag_value(note))
    if error:
        client.set_tag(parent.info.run_id, ERROR, tag_value(error))
    elif ERROR in tags:
        client.delete_tag(parent.info.run_id, ERROR)


def attempts_before(client: MlflowClient, parent: str, identity: str) -> int:
    """How many runs of the same stage and outputs it has."""
    experiment = client.get_run(parent).info.experiment_id
    return len(client.search_runs([experiment], f"tags.`{PARENT}` = '{parent}' and tags.identity = '{identity}'"))
