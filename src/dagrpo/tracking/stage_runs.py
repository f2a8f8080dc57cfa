"""MLflow runs of executions, below the run of their seed."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dagrpo.tracking.execution import Execution
from dagrpo.tracking.names import digest_list, file_tag, flatten
from dagrpo.tracking.parents import ATTEMPT, NOTE, describe, find_parent, is_abandoned, variation_tags
from dagrpo.tracking.runs import PARENT, Run, Runs

ABOUT_CURVES = (
    "The parent run of this seed has the curves. This run has the meaning of each metric (`metrics.json`), completions, traces and "
    "the load of the machine."
)
INCOMPLETE = "incomplete"  # the tag that says why a run has no figures


def closed_run(runs: Runs, execution: Execution) -> Run | None:
    """Return a closed run of this execution: of its outputs, or of its note; one that is complete before others."""
    if execution.status == "FINISHED":
        own = {file_tag("output", path): digest for path, digest in execution.outputs.items()}
    else:
        own = {"execution": execution.note}
    alike = [run for run in _closed(runs, execution) if own.items() <= run.tags.items()]
    alike = [run for run in alike if execution.status != "FINISHED" or run.status == "FINISHED"]
    return min(alike, key=lambda run: not is_complete(run, execution), default=None)


def _closed(runs: Runs, execution: Execution) -> Iterator[Run]:
    return (run for run in runs.where(role="stage", key=execution.key) if run.status != "RUNNING")


def is_complete(run: Run, execution: Execution) -> bool:
    """Return True if a closed run has the status and the figures of this execution."""
    return run.status == execution.status and INCOMPLETE not in run.tags


def open_run(runs: Runs, execution: Execution, begun: Run | None = None) -> Run:
    """Return the run that a sync or a follower has begun for this execution, or a new one.

    begun: a closed run of this execution to continue, if there is one.
    """
    run = close_others(runs, execution) or begun or _create(runs, execution)
    describe(runs.by_id(run.tags[PARENT]), execution)
    run.log(params=flatten(execution.record["params"]), tags=digest_tags("input", execution.record["inputs"]))
    return run


def close_others(runs: Runs, execution: Execution) -> Run | None:
    """Close as KILLED the runs that earlier executions of the same stage have left; return this one's open run."""
    own = None
    for run in list(runs.where(identity=execution.identity)):
        if run.status != "RUNNING":
            continue
        if own is None and _is_own(run.tags, execution):
            own = run
        elif is_abandoned(run.tags):
            run.close("KILLED")
    return own


def _is_own(tags: Mapping[str, str], execution: Execution) -> bool:
    """Return True if an open run is this execution's: of its note, or begun by a sync for the same results."""
    if "execution" in tags:
        return tags["execution"] == execution.note
    return execution.status == "FINISHED" and tags.get("key") == execution.key


def digest_tags(kind: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the sha256 of each input or output as a tag of a run. kind: input, output."""
    tags = {file_tag(kind, path): digest for path, digest in sorted(digests.items())}
    return tags | {f"{kind}s": digest_list(digests)}


def _create(runs: Runs, execution: Execution) -> Run:
    parent = find_parent(runs, execution, execution.record.get("seed"))
    parent.reopen()
    before = runs.where(**{PARENT: parent.run_id, "identity": execution.identity})
    attempt = 1 + sum(1 for _ in before)
    tags = _tags(execution) | {PARENT: parent.run_id, ATTEMPT: str(attempt)}
    return runs.create(_name(execution, attempt), execution.started, tags)


def _name(execution: Execution, attempt: int) -> str:
    """Return a run's name, its stage and place, such as `score gsm8k/trained`, with a number from the second attempt on."""
    name = f"{execution.stage} {execution.place}".strip()
    return f"{name}, attempt {attempt}" if attempt > 1 else name


def _tags(execution: Execution) -> dict[str, Any]:
    record = execution.record
    tags: dict[str, Any] = {name: record[name] for name in ("stage", "key", "code")}
    tags |= {"experiment": execution.experiment, "role": "stage", "seed": execution.seed}
    tags |= variation_tags(execution)
    tags |= {"taken_from": record["taken_from"]} if "taken_from" in record else {}
    tags |= {"identity": execution.identity, "mlflow.source.name": f"src/dagrpo/pipeline/stages/{record['stage']}.py"}
    tags |= {} if execution.status == "FINISHED" else {"execution": execution.note}
    if execution.process is not None:
        tags |= {f"process.{name}": value for name, value in asdict(execution.process).items()}
    tags |= {NOTE: ABOUT_CURVES} if execution.trains else {}
    return tags | {"mlflow.source.type": "LOCAL"} | dict(execution.facts)
