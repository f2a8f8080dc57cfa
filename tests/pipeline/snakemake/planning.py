"""Snakemake's own DAG, planned without running jobs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrpo.pipeline.dag import PlannedJob

CHECKSUMS_UP_TO = 10**12  # bytes, as in profiles/default


def planned_jobs(root: Path, config: Mapping[str, object]) -> list[PlannedJob]:
    """List every job that `target` needs before any output exists, with `config` laid over params.yaml."""
    with opened(root, config) as workflow:
        return [planned(job) for job in workflow.dag.jobs if job.output]


def planned(job: Any) -> PlannedJob:
    """Convert a job of Snakemake's into a record."""
    return PlannedJob(
        stage=job.rule.name,
        wildcards=dict(job.wildcards_dict),
        inputs={name: _paths(paths) for name, paths in job.input.items()},
        outputs={name: _paths(paths) for name, paths in job.output.items()},
    )


@contextmanager
def opened(root: Path, config: Mapping[str, object]) -> Iterator[Any]:
    """Open Snakemake's workflow object with the DAG of all jobs of `target` built. Locks nothing and runs nothing."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import (
        ConfigSettings,
        DAGSettings,
        ExecutionSettings,
        OutputSettings,
        Quietness,
        ResourceSettings,
    )

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            snakefile=root / "Snakefile",
            workdir=root,
            config_settings=ConfigSettings(config=dict(config)),
        )
        settings = DAGSettings(targets={"target"}, forceall=True, max_checksum_file_size=CHECKSUMS_UP_TO)
        inner = workflow.dag(settings).workflow_api._workflow
        inner.execution_settings = ExecutionSettings()
        inner._prepare_dag(forceall=True, ignore_incomplete=True, lock_warn_only=True)
        inner._build_dag()
        yield inner


def _paths(paths: object) -> tuple[str, ...]:
    return (str(paths),) if isinstance(paths, str) else tuple(str(path) for path in paths)  # type: ignore[attr-defined]
