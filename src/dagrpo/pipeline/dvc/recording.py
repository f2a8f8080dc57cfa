"""Recording of finished jobs in DVC, and repair of dvc.lock.

A stage leaves an entry in `.state/ran/<experiment>/` when it ends well; it is removed when DVC has recorded its outputs. Outputs
that cannot be recorded now, because params.yaml has been edited meanwhile, are recorded by a later run of the same experiment.

A merge, a full disk or a kill may damage dvc.lock. DVC checks the whole of it, in seconds; this the starts of its lines. A `dvc repro` that
is killed while it writes leaves a part of it: the copy that its stages keep takes its place.
"""

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dagrpo.config.schema import Params, read_params
from dagrpo.core.errors import UserError
from dagrpo.core.escape import sentence
from dagrpo.pipeline.changes.executions import is_current, is_made_by
from dagrpo.pipeline.dag import planned_jobs, stage_of
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.dvc.file import CHECK_STAGE
from dagrpo.pipeline.dvc.private import CUT_SHORT, LOCK, fault_of, record_outputs
from dagrpo.pipeline.override_runs import PARAMS, TRY
from dagrpo.pipeline.record import STATES
from dagrpo.pipeline.runner import RAN, dvc_drives, note_outputs
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.console import say
from dagrpo.utils.files import atomic_file, read_json, sha256_of
from dagrpo.utils.provenance import TOPS, provenances_of

COPY = STATES / "dvc.lock"  # the copy from the beginning of the latest stage of a `dvc repro`


def require_readable_lock() -> None:
    """Raise UserError for a damaged dvc.lock, after noting what it recorded, so that a later run records it again.

    One that is cut short is replaced by the copy that a stage of a `dvc repro` keeps, if that copy is intact.
    """
    trouble = _trouble(LOCK)
    if trouble is None:
        if dvc_drives() and LOCK.is_file():
            _copy(LOCK, COPY)
        return
    _note_all_that_was_made()
    if trouble == CUT_SHORT and COPY.is_file() and _trouble(COPY) is None:
        _copy(COPY, LOCK)
        say(f"{LOCK} was cut short, as a DVC that is killed leaves it: it is again as it was before that was written.")
        return
    raise UserError(
        f"{LOCK} is damaged ({trouble}): restore it with `git checkout HEAD -- {LOCK}`, or delete it; the same command then "
        "records in it what has been made here."
    )


def _copy(source: Path, destination: Path) -> None:
    with atomic_file(destination) as writing:
        shutil.copyfile(source, writing)


def _trouble(path: Path) -> str | None:
    try:
        return fault_of(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _note_all_that_was_made() -> None:
    experiments = {path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir() and TRY not in path.name}
    for provenance in (path for experiment in sorted(experiments) for path in provenances_of(experiment)):
        with suppress(UserError):  # damaged: its stage is about to run again
            record = read_json(provenance)
            if record["experiment"] == provenance.parts[1]:
                note_outputs([*record["outputs"], str(provenance)], provenance, record)


def record_left_over(folder: str) -> None:
    """Record, before a run, the outputs of an earlier one that was killed or whose params.yaml was edited meanwhile."""
    if commit(folder):
        say("What an earlier run had finished is recorded in DVC now.")


def commit(folder: str) -> bool:
    """Record finished outputs that are still current. Returns True if there was such an output and DVC recorded all of them.

    Does nothing while DVC drives, which records by itself; an override run has nothing to record.
    """
    if dvc_drives() or not Path(".dvc").is_dir():
        return False
    params = read_params(PARAMS)
    if params.experiment.name != folder:  # edited meanwhile: dvc.yaml has no stages for the finished jobs
        return False
    recordable = dict[Path, list[str]]()
    for entry in sorted((RAN / folder).glob("*.json")):
        try:
            recordable[entry] = still_current(entry, params)
        except (OSError, UserError) as error:  # it is damaged, or its provenance
            what = f"{entry} cannot be read ({error}): what it names will be made again."
            print(f"Not recorded in DVC: {sentence(what)}", file=sys.stderr)
            entry.unlink()
    outputs = [Path(output) for paths in recordable.values() for output in paths]
    if not outputs or not _record([*outputs, *_with_the_same_dependencies(outputs, params)]):
        return False
    for entry, paths in recordable.items():
        if paths:
            entry.unlink()
    return True


def _with_the_same_dependencies(outputs: Sequence[Path], params: Params) -> list[Path]:
    """List the current outputs of other jobs that DVC would take for changed.

    They are of stages whose jobs read different raw files, since each has those of all in dvc.yaml, and of stages that read the tasks of
    a mixture, which DVC knows with their shares.
    """
    found = []
    stages = {stage_of(str(path)) for path in outputs}
    jobs = planned_jobs(params, params.experiment.name)
    for job in jobs:
        raw = {other.inputs.get(RAW, ()) for other in jobs if other.stage == job.stage}
        has_shares = "experiment.train_tasks" in all_stages()[job.stage].reads and bool(params.experiment.shares)
        is_meant = has_shares or (job.stage in stages and len(raw) > 1)
        if is_meant and Path(job.provenance) not in outputs and is_current(job, params):
            found.append(Path(job.provenance))
    return found


def still_current(entry: Path, params: Params) -> list[str]:
    """Return the outputs of a journal entry if today's inputs, parameters and code would make them again, else [].

    Entries are out of date if params.yaml or the code was edited before a run ended, or before it was killed: DVC would record their
    outputs as made by the inputs, params.yaml and code of now.
    """
    ran = read_json(entry)
    provenance = Path(ran["provenance"])
    record = read_json(provenance) if provenance.exists() else {}
    if record.get("key") != ran["key"]:
        return []
    inputs = {Path(path): digest for path, digest in record["inputs"].items()}
    is_current = is_made_by(record, params) and all(p.is_file() and sha256_of(p) == d for p, d in inputs.items())
    return [str(Path(output)) for output in ran["outputs"]] if is_current else []


def _record(outputs: list[Path]) -> bool:
    """Record the outputs of DVC's stages that own these; return False, with a message, if one was not recorded.

    dvc.lock is written once: with several experiments in it, that takes seconds.
    """

    def is_wanted(address: str, outs: set[Path]) -> bool:
        owns = any(not outs.isdisjoint((output, *output.parents)) for output in outputs)
        return owns or address.startswith(f"{CHECK_STAGE}@")

    failures = record_outputs(is_wanted)
    for reason, stages in failures.items():
        first, *others = stages or [""]
        named = f"{first} and {len(others)} more: " if others else f"{first}: " if first else ""
        print(f"Not recorded in DVC, the next run tries again: {named}{reason}", file=sys.stderr)
    return not failures
