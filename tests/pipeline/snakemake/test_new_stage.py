"""A new stage is one file: both engines, status, the report's lineage and the screen know it from its declaration."""

import json
from pathlib import Path

import pytest
import yaml
from tests.pipeline.snakemake import clones

STAGE = '''"""Stage census: how many problems a task has."""

from dagrpo.trainer.config.runtime import Runtime
from dagrpo.pipeline.declaration import DATA, Job, Needs, Stage


def work(job: Job) -> None:
    """Count the rows."""
    from dagrpo.utils.files import write_json
    from dagrpo.utils.tables import read_parquet

    write_json(job.output("census"), {"problems": read_parquet(job.input("train")).num_rows, "threads": job.threads})


def needs(runtime: Runtime) -> Needs:
    return Needs(threads=2, memory_mb=1234, minutes=7)


STAGE = Stage(
    name="census",
    work=work,
    reads=("data.contamination",),
    inputs={"train": f"{DATA}/train.parquet"},
    outputs={
        "census": "results/{experiment}/census/{task}/census.json",
        "provenance": "results/{experiment}/census/{task}/provenance.json",
    },
    label="problems of {task}",
    needs=needs,
    restarts=1,
)
'''


@pytest.mark.nightly
@pytest.mark.dag
def test_one_file_makes_a_stage_of_both_engines_with_all_its_resources(run_by_snakemake: Path, tmp_path: Path) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    (folder / "src/dagrpo/pipeline/stages/census.py").write_text(STAGE)
    plan = clones.run(folder, "snakemake", "-n", "--printshellcmds", "target")
    assert all(f"\n{name} " in plan for name in ("census", "report")), plan
    assert not any(f"\n{name} " in plan for name in ("prepare", "train", "score")), plan
    target = f"results/{clones.NAME}/census/arithmetic/census.json"
    output = clones.run(folder, "snakemake", "--cores", "2", "target")
    assert "census: problems of arithmetic" in output
    assert json.loads((folder / target).read_text()) == {"problems": 40, "threads": 2}
    assert (folder / f"logs/{clones.NAME}/census_arithmetic.benchmark.tsv").is_file()
    assert "census" in (folder / f"results/{clones.NAME}/report/report.html").read_text()
    stage = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]["census"]
    assert stage["matrix"] == {"experiment": ["${experiment.name}"], "task": "${experiment.tasks}"}
    assert "data/${experiment.name}/${item.task}" in stage["deps"]
    assert "src/dagrpo" in stage["deps"]
    assert stage["outs"] == ["results/${experiment.name}/census/${item.task}"]
    assert "up to date" in clones.run(folder, "dvc", "status")
    (status,) = json.loads(clones.run(folder, "python", "-m", "dagrpo", "status", "--json"))
    assert (status["state"], status["stale"], status["made"]) == ("done", [], status["expected"])
    assert "is made by census, which has nothing to do" in clones.run(folder, "dagrpo", "status", "--why", target)
