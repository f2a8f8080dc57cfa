"""The run of a stage's execution, as it is opened: its place below the run of the seed, tags, parameters, inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Param, RunTag
from mlflow.tracking import MlflowClient

from dagrpo.tracking.environment import Process
from dagrpo.tracking.events import Event
from dagrpo.tracking.experiments import close_dead_runs, find_execution, find_experiment, process_tags, run_name
from dagrpo.tracking.journal import identity
from dagrpo.tracking.names import digest_list, file_tag, flatten, tag_value
from dagrpo.tracking.pages import log_data_sets, tests_in
from dagrpo.tracking.parents import (
    ATTEMPT,
    ENTRIES_PER_BATCH,
    NOTE,
    PARENT,
    WITH_CURVES,
    attempts_before,
    describe,
    find_parent,
    seed_tag,
    variation_tags,
)
from dagrpo.tracking.variations import experiment_name

ABOUT_CURVES = (
    "Its curves are those of the run above it, which stands for the seed. Here: completions, traces, the machine."
)


def open_run(client: MlflowClient, folder: Path, start: Event) -> str:
    """The id of the run of a journal, made if there is none. `start`: the journal's first event."""
    record = start["record"]
    experiment = find_experiment(client, experiment_name(record), start["artifacts"])
    run_id = find_execution(client, experiment, folder.name) or _make(client, experiment, folder, start)
    params = [Param(name, value) for name, value in flatten(record["params"]).items()]
    for part in _batches(params):
        client.log_batch(run_id, params=part)
    log_digests(client, run_id, "input", record["inputs"])
    log_data_sets(client, run_id, tests_in(start.get("behind", {})))
    return run_id


def log_digests(client: MlflowClient, run_id: str, kind: str, digests: Mapping[str, str]) -> None:
    """The sha256 of each input or output as tags. `kind`: input, output."""
    tags = [RunTag(file_tag(kind, path), digest) for path, digest in sorted(digests.items())]
    tags.append(RunTag(f"{kind}s", digest_list(digests)))
    for part in _batches(tags):
        client.log_batch(run_id, tags=part)


def _make(client: MlflowClient, experiment: str, folder: Path, start: Event) -> str:
    record = start["record"]
    close_dead_runs(client, experiment, identity(start))
    parent = find_parent(client, experiment, start, record["seed"])
    client.update_run(parent, "RUNNING")
    describe(client, parent, start)
    attempt = 1 + attempts_before(client, parent, identity(start))
    tags = _tags(folder, start) | {PARENT: parent, ATTEMPT: str(attempt)}
    run = client.create_run(experiment, start["time"], tags, run_name(record, attempt))
    return str(run.info.run_id)


def _tags(folder: Path, start: Event) -> dict[str, str]:
    record = start["record"]
    tags = {name: record[name] for name in ("stage", "key", "code")} | {"experiment": experiment_name(record)}
    tags |= {"role": "stage", "seed": seed_tag(record), "execution": folder.name}
    tags |= variation_tags(record, start.get("variation", ""))
    tags |= {"taken_from": record["taken_from"]} if "taken_from" in record else {}
    tags |= {"identity": identity(start), "mlflow.source.name": f"src/dagrpo/stages/{record['stage']}.py"}
    tags |= {NOTE: ABOUT_CURVES} if record["stage"] in WITH_CURVES else {}
    tags |= {"mlflow.source.type": "LOCAL"} | start["tags"] | process_tags(Process(**start["process"]))
    return {name: tag_value(value) for name, value in tags.items()}


def _batches(entries: Sequence[Any]) -> list[Sequence[Any]]:
    return [entries[start : start + ENTRIES_PER_BATCH] for start in range(0, len(entries), ENTRIES_PER_BATCH)]
