"""Snakemake's records, derived from provenance.

Snakemake's records are missing or of another execution after `dvc repro` has restored a stage from its cache, after `dvc pull`,
`dvc checkout` or `dvc exp apply`, and after a failed job whose former outputs were kept; and they say nothing of outputs that were
changed or removed, nor of raw files that were replaced by older ones or are gone. The provenance.json beside the outputs is right: a job
whose provenance matches today's parameters, code, inputs and outputs is recorded as finished, any other as unfinished.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagrpo.config.places import SCRIPT, place_of
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.accepted import acceptances
from dagrpo.pipeline.changes.executions import is_current, is_made_by, named
from dagrpo.pipeline.dag import PlannedJob, all_files, by_job, planned_jobs, seed_of
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.job_files import job_file, recorded_code
from dagrpo.pipeline.raw_inputs import changed_raw, missing_raw
from dagrpo.pipeline.snakemake_private import (
    is_unfinished,
    record_finished,
    record_unfinished,
    recorded_digests,
    recorded_inputs,
    recorded_job,
)
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.console import say
from dagrpo.utils.files import read_json, sha256_of, unshare
from dagrpo.utils.manifest import MANIFEST, fault_of_size, listed_files
from dagrpo.utils.provenance import PROVENANCE


def reconcile(params: Params, experiment: str) -> None:
    """Update Snakemake's records of an experiment that do not match provenance; takes milliseconds if all do.

    Raises UserError for a damaged accepted.json, without which results that count would be made again.
    """
    acceptances()
    for parts in by_job(planned_jobs(params, experiment)):
        _make_writable(parts)
        there = [part for part in parts if Path(part.provenance).is_file()]
        if all(_is_known(part, params) and _is_untouched(part) for part in there):
            continue
        current = [part for part in there if is_current(part, params)]
        _record(current, params)
        for part in current:
            with suppress(OSError):  # another user's: compared again the next time
                os.utime(part.provenance)
        for part in (part for part in there if part not in current):
            _name_changed_raw_files(part)
            for path in part.files:
                record_unfinished(Path(path))


def _name_changed_raw_files(part: PlannedJob) -> None:
    """Say which raw files make a job run again: Snakemake names neither pictures nor, by default, its reasons."""
    with suppress(OSError, UserError, KeyError):  # a damaged record
        changed = changed_raw(read_json(Path(part.provenance)), part.inputs.get(RAW, ()))
        if changed:
            names = ", ".join(f"{name} {'has changed' if was else 'is new'}" for name, (was, _) in changed.items())
            say(f"{named(part.stage, seed_of(part.provenance), part.provenance)} runs again: {names}.")


def _make_writable(parts: Sequence[PlannedJob]) -> None:
    """Replace links to DVC's cache (`cache.type hardlink`) by copies: Snakemake refuses to make read-only outputs again."""
    # Provenance last: no output may be newer.
    for path in sorted(all_files(parts), key=lambda path: path.endswith(PROVENANCE)):
        with suppress(PermissionError):  # another user's
            unshare(Path(path))


def _is_untouched(part: PlannedJob) -> bool:
    """Return True if all outputs are there, files of folders have their sizes, and none changed after the provenance.

    By ctime, which a copy with an older time has too.
    """
    try:
        written = Path(part.provenance).stat().st_ctime_ns
        for path in map(Path, part.files):
            listed = listed_files(path) if path.name == MANIFEST else {}
            files = [path, *(path.parent / name for name in listed)]
            if any(file.stat().st_ctime_ns > written for file in files):
                return False
            if any(fault_of_size(path.parent / name, entry) for name, entry in listed.items()):
                return False
    except (OSError, UserError):  # missing or damaged
        return False
    return True


def _is_known(part: PlannedJob, params: Params) -> bool:
    """Return True if Snakemake's record of a provenance file is of the execution in that file, with the raw files of today."""
    provenance = Path(part.provenance)
    try:
        record = read_json(provenance)
        digests = recorded_digests(provenance)
        return (
            digests is not None
            and not is_unfinished(provenance)
            and recorded_job(provenance) == _job(record, params)
            and not missing_raw(dict.fromkeys(recorded_inputs(provenance), ""), record["experiment"])
            and not changed_raw(record, part.inputs.get(RAW, ()))
            and record["inputs"].items() <= digests.items()
            and recorded_code(record["code"]) is not None
        )
    except (OSError, UserError, KeyError):  # provenance is damaged, or of an earlier version
        return False


def _job(record: Mapping[str, Any], params: Params) -> str:
    """Return the name of the job file that makes Snakemake find nothing to do: today's where today's code is accepted."""
    if any(each.before == record["code"] for each in acceptances()) and is_made_by(record, params):
        return Path(job_file(params, all_stages()[record["stage"]])).stem
    return str(record["job"])


def _record(parts: Sequence[PlannedJob], params: Params) -> None:
    """Record the parts of one job with the inputs of all: Snakemake compares those of a job between its outputs."""
    if not parts:
        return
    stage = all_stages()[parts[0].stage]
    digests = {str(place_of(SCRIPT)): sha256_of(place_of(SCRIPT))}
    for part in parts:
        digests |= read_json(Path(part.provenance))["inputs"]
    for path in all_files(parts):
        record_finished(Path(path), stage.name, job_file(params, stage), digests)
