"""Snakefile and dvc.yaml describe the same stages: inputs, outputs, parameter keys, code."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dvc.repo import Repo

from dagrpo.code import CODE, ROOT, code_files
from dagrpo.workflow.stages import KEYS

# Imported by stages, but unable to change an output: what shows or records a run, and the table of code itself.
WITHOUT_EFFECT = (
    "src/dagrpo/tracking/",
    "src/dagrpo/console.py",
    "src/dagrpo/code.py",
    "src/dagrpo/ancestors.py",
    "src/dagrpo/__init__.py",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of Snakemake's DAG."""

    rule: str
    inputs: frozenset[str]
    outputs: frozenset[str]


@dataclass(frozen=True, slots=True)
class DvcStage:
    """One stage of dvc.yaml, its templates resolved."""

    name: str
    dependencies: frozenset[str]
    outputs: frozenset[str]
    keys: frozenset[str]


def _jobs() -> Iterator[Job]:
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, Quietness, ResourceSettings

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1), snakefile=Path("Snakefile"), config_settings=ConfigSettings()
        )
        inner = workflow.dag(DAGSettings(targets={"target"}, forceall=True)).workflow_api._workflow
        inner._prepare_dag(forceall=True, ignore_incomplete=True, lock_warn_only=True)
        inner._build_dag()
        for job in inner.dag.jobs:
            if job.output:
                yield Job(job.rule.name, frozenset(map(str, job.input)), frozenset(map(str, job.output)))


def _dvc_stages() -> list[DvcStage]:
    with Repo(".") as repo:
        return [
            DvcStage(
                name=stage.addressing.split("@")[0].split(":")[-1],
                dependencies=frozenset(str(d.def_path) for d in stage.deps) - {"params.yaml"},
                outputs=frozenset(str(out.def_path) for out in stage.outs),
                keys=frozenset(key for d in stage.params for key in d.params),
            )
            for stage in repo.index.stages
        ]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Job, DvcStage]]:
    """Every Snakemake job beside the DVC stage that makes its outputs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        jobs, stages = list(_jobs()), _dvc_stages()
    owners = [(job, [s for s in stages if all(_covered(o, s.outputs) for o in job.outputs)]) for job in jobs]
    assert all(len(found) == 1 for _, found in owners), [(job.rule, len(found)) for job, found in owners]
    assert len(stages) == len(jobs), "a stage of dvc.yaml has no job in the Snakefile"
    return [(job, found[0]) for job, found in owners]


def _covered(path: str, by: frozenset[str]) -> bool:
    return any(str(candidate) in by for candidate in (Path(path), *Path(path).parents))


def test_both_engines_have_the_same_stages(pairs: list[tuple[Job, DvcStage]]) -> None:
    assert {job.rule for job, _ in pairs} == set(KEYS) == set(CODE)
    assert all(job.rule == stage.name for job, stage in pairs)


def test_every_input_of_a_job_is_a_dependency_of_its_stage_and_the_other_way_round(
    pairs: list[tuple[Job, DvcStage]],
) -> None:
    for job, stage in pairs:
        assert [path for path in sorted(job.inputs) if not _covered(path, stage.dependencies)] == [], job.rule
        used = {str(p) for path in job.inputs for p in (Path(path), *Path(path).parents)}
        assert stage.dependencies - used == set(), job.rule


def test_every_output_of_a_stage_holds_an_output_of_its_job(pairs: list[tuple[Job, DvcStage]]) -> None:
    for job, stage in pairs:
        made = {str(p) for path in job.outputs for p in (Path(path), *Path(path).parents)}
        assert stage.outputs - made == set(), job.rule


def test_both_engines_watch_the_same_parameter_keys(pairs: list[tuple[Job, DvcStage]]) -> None:
    for job, stage in pairs:
        assert stage.keys == set(KEYS[job.rule]), job.rule


def _module_file(module: str) -> str | None:
    path = ROOT / "src" / Path(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.exists():
            return str(candidate.relative_to(ROOT))
    return None


def _imported(file: str) -> set[str]:
    """The project's files that a file imports, packages' __init__ included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            if module.startswith("dagrpo"):
                parts = module.split(".")
                names = {".".join(parts[: end + 1]) for end in range(len(parts))}
                found |= {path for path in map(_module_file, names) if path is not None}
    return found


@pytest.mark.parametrize("stage", sorted(CODE))
def test_a_stage_depends_on_every_file_it_imports(stage: str) -> None:
    waiting, seen = {f"workflow/scripts/{stage}.py"}, set[str]()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        waiting |= {f for f in _imported(file) if f not in seen and not f.startswith(WITHOUT_EFFECT)}
    unwatched = sorted(seen - set(code_files(stage)) - {"src/dagrpo/params/__init__.py"})
    assert unwatched == []
