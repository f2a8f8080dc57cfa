"""The outputs of an execution, by its provenance.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrpo.pipeline.dag import seed_of, stage_of
from dagrpo.utils.files import read_object
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.provenance import PROVENANCE, TOPS, provenances_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """One execution of a stage, and what it depended on."""

    provenance: Path  # the record itself
    stage: str
    experiment: str
    seed: int | None  # None for stages that all seeds share
    params: Mapping[str, Any]  # what the stage read, nested
    code: str  # one digest of all its files
    job: str | None  # the name of its file in .state/jobs; None: not on record
    environment: Mapping[str, str]
    runtime: Mapping[str, Any]  # the whole section, nested; empty where the record has none
    overrides: Mapping[str, Any]  # of an override run
    inputs: Mapping[str, str]  # sha256 by path
    outputs: Mapping[str, str]  # sha256 by path

    @property
    def what(self) -> str:
        """Return the job in words, such as "train, seed 0"."""
        return named(self.stage, self.seed, str(self.provenance))


def read_record(provenance: Path) -> ExecutionRecord:
    """Read a provenance.json. Raises UserError naming the file if it is missing or damaged."""
    record = read_object(provenance)
    return ExecutionRecord(
        provenance=provenance,
        stage=record["stage"],
        experiment=record["experiment"],
        seed=record.get("seed"),
        params=record.get("params", {}),
        code=record.get("code", ""),
        job=record.get("job"),
        environment=record.get("environment", {}),
        runtime=record.get("runtime", {}),
        overrides=record.get("overrides", {}),
        inputs=record["inputs"],
        outputs=record["outputs"],
    )


def all_records(experiment: str) -> list[ExecutionRecord]:
    """Read the record of every execution of an experiment. Raises UserError if one is damaged."""
    return [read_record(path) for path in provenances_of(experiment)]


def experiments() -> list[str]:
    """Return the names of the experiments and override runs of which this folder has at least one record."""
    names = {path.name for top in TOPS for path in Path(top).glob("*") if path.is_dir()}
    return sorted(name for name in names if next(provenances_of(name), None) is not None)


def maker_of(path: Path) -> ExecutionRecord | None:
    """Return the record of the execution that wrote a file; None without one. A checkpoint's folder stands for its manifest."""
    wanted = path / MANIFEST if path.is_dir() else path
    root = Path.cwd()
    if wanted.is_absolute() and wanted.is_relative_to(root):
        wanted = wanted.relative_to(root)
    parts = wanted.parts
    if len(parts) < 3 or parts[0] not in TOPS:
        return None
    if wanted.name.endswith(PROVENANCE):
        return read_record(wanted) if wanted.is_file() else None
    for execution in map(read_record, provenances_of(parts[1])):
        folders = {Path(output).parent for output in execution.outputs if Path(output).name == MANIFEST}
        if str(wanted) in execution.outputs or not folders.isdisjoint(wanted.parents):
            return execution
    return None


def stage_and_seed(path: str) -> tuple[str, int | None] | None:
    """Return stage and seed that write a file of the results layout, or a folder with a slash at its end; else None."""
    stage = stage_of(path)
    return None if stage is None else (stage, seed_of(path))


def named(stage: str, seed: int | None, path: str) -> str:
    """Return a job in words: its stage, its seed, and of an evaluation its task and policy."""
    words = [stage, *([f"seed {seed}"] if seed is not None else [])]
    inner = Path(path).parts
    if "eval" in inner:
        words += inner[inner.index("eval") + 1 : inner.index("eval") + 3]
    elif inner[0] == "data":
        words += inner[2:3]
    return ", ".join(words)
