"""The jobs of Snakemake's DAG for some parameters, without running any: what dvc.yaml is generated from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job, its paths as Snakemake has resolved them."""

    rule: str
    wildcards: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]  # by name
    outputs: Mapping[str, tuple[str, ...]]  # by name


def planned_jobs(root: Path, config: Mapping[str, object]) -> list[PlannedJob]:
    """Every job that `target` needs when nothing is there yet, with `config` laid over params.yaml."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, Quietness, ResourceSettings

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            snakefile=root / "Snakefile",
            workdir=root,
            config_settings=ConfigSettings(config=dict(config)),
        )
        inner = workflow.dag(DAGSettings(targets={"target"}, forceall=True)).workflow_api._workflow
        inner._prepare_dag(forceall=True, ignore_incomplete=True, lock_warn_only=True)
        inner._build_dag()
        return [
            PlannedJob(
                rule=job.rule.name,
                wildcards=dict(job.wildcards_dict),
                inputs={name: _paths(paths) for name, paths in job.input.items()},
                outputs={name: _paths(paths) for name, paths in job.output.items()},
            )
            for job in inner.dag.jobs
            if job.output
        ]


def _paths(paths: object) -> tuple[str, ...]:
    return (str(paths),) if isinstance(paths, str) else tuple(str(path) for path in paths)  # type: ignore[attr-defined]
