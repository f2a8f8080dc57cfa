"""Update of Snakemake's records for outputs that DVC restored.

After `dvc repro` has restored a stage from its cache, after `dvc pull`, `dvc checkout` or `dvc exp apply`, and after a
failed job whose former outputs were kept, Snakemake's records are of another execution, or missing. The provenance.json beside
the outputs is right; so each job whose provenance matches today's parameters, code and inputs is recorded as done, and each
other one as not done.
"""

import json
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrpo.config.overlay import OVERRIDE, flat, with_overrides
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.damaged import forget_damage, is_noted
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.integrity import is_whole
from dagrpo.pipeline.jobs import NOT_DATA, SCRIPT, code_files, own_params
from dagrpo.pipeline.snakemake.configuration import PARAMS
from dagrpo.pipeline.snakemake.dag import PlannedJob, opened, planned
from dagrpo.pipeline.stages import all_stages
from dagrpo.pipeline.trial_runs import Try
from dagrpo.utils.files import digest_of, read_json, sha256_of
from dagrpo.utils.provenance import provenances_of
from dagrpo.utils.yaml_text import read_yaml

RECORDS = Path(".snakemake/metadata")
UNFINISHED = Path(".snakemake/incomplete")


def agree(a_try: Try, params: Params) -> None:
    """Update Snakemake's records if they do not match provenance; takes milliseconds if they do.

    Uses a separate process, as this one is about to plan the same jobs. Raises UserError if they cannot be planned.
    """
    provenances = list(provenances_of(a_try.folder))
    if all(_is_known(path) and not is_noted(a_try.folder, path) for path in provenances):
        return
    overrides = {key: value for key, value in flat(params.model_dump()).items() if key in a_try.overrides}
    command = (sys.executable, "-m", "dagrpo.pipeline.snakemake.reconcile", json.dumps(overrides))
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"DAGRPO_TRACKING": "off"})
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"The jobs of {a_try.folder} cannot be compared with what has been made: {last}")
    forget_damage(a_try.folder)


def _is_known(provenance: Path) -> bool:
    """Return True if Snakemake's record of a provenance file is of the execution in that file."""
    name = urlsafe_b64encode(str(provenance).encode()).decode()
    record = RECORDS / name
    if (UNFINISHED / name).exists():  # of a run that was killed
        return False
    try:
        recorded, told = read_json(record), read_json(provenance)
        seen = {path: digest.removeprefix("sha256:") for path, digest in recorded["input_checksums"].items()}
        code = {path: digest for path, digest in seen.items() if path not in told["inputs"] and path != SCRIPT}
        same_job = any(f"{told['job']}.json" in param for param in recorded["params"])
        return same_job and told["inputs"].items() <= seen.items() and told["code"] == digest_of(code)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or either is damaged
        return False


def main(overrides: Mapping[str, Any]) -> None:
    """Update the jobs of params.yaml, or of an override run, in the order in which they run."""
    config = {key.replace(".", OVERRIDE): json.dumps(value) for key, value in overrides.items()}
    params = parse(with_overrides(read_yaml(PARAMS) | config))
    with opened(Path.cwd(), config) as workflow:
        workflow.async_run(_correct(workflow, params))


async def _correct(workflow: Any, params: Params) -> None:
    for level in workflow.dag.toposorted():
        for job in level:
            plan = planned(job)
            (provenance,) = plan.outputs.get("provenance", (None,))
            if provenance is None or not Path(provenance).is_file():
                continue
            if _is_known(Path(provenance)) and not is_noted(plan.wildcards["experiment"], Path(provenance)):
                continue
            if _is_current(plan, Path(provenance), params):
                _make_newer(plan)
                await workflow.persistence.finished(job)
            else:
                workflow.persistence.started(job)  # not finished, so it is run again


def _is_current(plan: PlannedJob, provenance: Path, params: Params) -> bool:
    """Return True if an execution with today's parameters and code made these outputs from these inputs."""
    try:
        told = read_json(provenance)
        files = [path for name, paths in plan.inputs.items() if name not in NOT_DATA for path in paths]
        outputs = [path for name, paths in plan.outputs.items() if name != "provenance" for path in paths]
        return (
            is_by(told, params)
            and _digests(files) == told["inputs"]
            and all(is_whole(Path(path), told["outputs"][path]) for path in outputs)
        )
    except (OSError, UserError, KeyError, TypeError, AttributeError):  # missing or damaged
        return False


def is_by(told: Mapping[str, Any], params: Params) -> bool:
    """Return True if a provenance record has these parameters and today's code."""
    stage = all_stages()[told["stage"]]
    same_params = told["params"] == own_params(params, stage)
    return bool(same_params and told["code"] == code_digest(code_files(params, stage)))


def _digests(paths: Sequence[str]) -> dict[str, str]:
    return {path: sha256_of(Path(path)) for path in paths}


def _make_newer(plan: PlannedJob) -> None:
    """Set outputs that are older than an input to the current time: DVC restores files in any order."""
    inputs, outputs = ([path for paths in each.values() for path in paths] for each in (plan.inputs, plan.outputs))
    newest = max(Path(path).stat().st_mtime_ns for path in inputs)
    for path in outputs:
        if Path(path).stat().st_mtime_ns < newest:
            os.utime(path)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
