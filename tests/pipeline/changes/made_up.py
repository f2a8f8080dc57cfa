"""A made-up project in a temporary folder: every record that a complete run leaves, and files of a few bytes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagrpo.config import documents
from dagrpo.config.schema import Params
from dagrpo.pipeline.changes.executions import stage_and_seed
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.identity import code_digest
from dagrpo.pipeline.job_files import JOBS, code_files, job_file, own_params, recorded_code
from dagrpo.pipeline.snakemake_private import record_finished
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.files import digest_of, read_json, sha256_of, write_json, write_text
from dagrpo.utils.manifest import MANIFEST, entry_of

SCRIPT = "workflow/scripts/stage.py"
OUTPUTS = {
    "prepare": (*(f"{name}.parquet" for name in ("train", "validation", "test", "dropped", "passages")), "card.json"),
    "difficulty": ("train.parquet", "difficulty.parquet"),
    "train": (MANIFEST, "../metrics.parquet", "../rollouts/manifest.json"),
    "sample": ("completions.parquet",),
    "score": ("scores.parquet", "scores.json"),
    "report": ("report.html",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Where it is, and what it is of. The tests' working directory is its folder."""

    root: Path
    params: Params
    provenances: tuple[Path, ...]  # in the order of the pipeline, relative to the folder

    @property
    def name(self) -> str:
        return self.params.experiment.name

    def provenance(self, stage: str) -> Path:
        """The first record of a stage."""
        return next(path for path in self.provenances if stage_and_seed(str(path))[0] == stage)  # type: ignore[index]

    def write_params(self, **sections: Mapping[str, Any]) -> None:
        """Write params.yaml with some values changed."""
        values = self.params.model_dump()
        for section, changed in sections.items():
            values[section] |= changed
        write_text(Path("params.yaml"), documents.params_yaml(Params.model_validate(values)))

    def change_code(self, stage: str, file: str, digest: str) -> None:
        """As if a file of the stage's code had had another digest when the stage ran."""
        provenance = self.provenance(stage)
        record = read_json(provenance)
        code = digest_of(then := (recorded_code(record["code"]) or {}) | {file: digest})
        write_json(JOBS / f"code-{code[:16]}.json", then)
        write_json(provenance, record | {"code": code})


def make_project(root: Path, params: Params = Params()) -> Project:  # noqa: B008 - it is frozen
    """Write it below `root`, which has to be the working directory already."""
    (root / "Snakefile").touch()
    write_text(root / "params.yaml", documents.params_yaml(params))
    jobs = planned_jobs(params, params.experiment.name)
    for job in jobs:
        _make(params, job)
    return Project(root=root, params=params, provenances=tuple(Path(job.provenance) for job in jobs))


def _make(params: Params, job: PlannedJob) -> None:
    """One execution: its outputs, its provenance, and Snakemake's record of it."""
    name, seed, provenance = job.stage, job.wildcards.get("seed"), Path(job.provenance)
    stage = all_stages()[name]
    inputs = [path for paths in job.inputs.values() for path in map(Path, paths) if path.exists()]
    outputs = [
        (provenance.parent / output).resolve().relative_to(Path.cwd()) for output in OUTPUTS.get(name, (MANIFEST,))
    ]
    for output in outputs:
        _write(output)
    digests = {str(path): sha256_of(path) for path in inputs}
    record = {
        "stage": name,
        "experiment": params.experiment.name,
        "seed": None if seed is None else int(seed),
        "params": own_params(params, stage),
        "code": code_digest(code_files(params, stage)),
        "job": Path(job_file(params, stage)).stem,
        "environment": {"python": "3.11.7", "torch": "2.13.0"},
        "overrides": {},
        "key": f"{name}{outputs[0]}",
        "inputs": digests,
        "outputs": {str(path): sha256_of(path) for path in outputs},
    }
    write_json(provenance, record)
    note_for_snakemake(provenance, digests)


def _write(output: Path) -> None:
    """A few bytes; of a folder its manifest and one file."""
    if output.name == MANIFEST:
        write_text(output.parent / "content", str(output))
        write_json(output, {"files": {"content": asdict(entry_of(output.parent / "content"))}})
    elif output.name == "scores.json":
        write_json(output, {"oracle": False, "greedy": {"value": 0.5, "low": 0.4, "high": 0.6}})
    elif output.name == "card.json":
        write_json(output, {"raw": {}, "source": "generator", "revision": None})
    else:
        write_text(output, str(output))


def note_for_snakemake(provenance: Path, digests: Mapping[str, str]) -> None:
    """Write Snakemake's record of a job's inputs."""
    record_finished(provenance, "stage", "job.json", dict(digests) | {SCRIPT: "0" * 64})
