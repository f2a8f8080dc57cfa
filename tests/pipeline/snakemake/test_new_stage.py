"""A new stage is one file and one rule: dvc.yaml, code identity and the command line follow from them."""

from pathlib import Path

import pytest
import yaml
from tests.pipeline.snakemake import clones

STAGE = '''"""Stage census: how many problems a task has."""

from dagrpo.pipeline.declaration import Job, Stage


def work(job: Job) -> None:
    """Count the rows."""
    from dagrpo.utils.files import write_json
    from dagrpo.utils.tables import read_parquet

    write_json(job.output("census"), {"problems": read_parquet(job.input("train")).num_rows})


STAGE = Stage(name="census", work=work, reads=("data.contamination",))
'''
RULE = """

rule census:
    input:
        script=SCRIPT,
        code=code("census"),
        train="data/{experiment}/{task}/train.parquet",
    output:
        census="results/{experiment}/census/{task}/census.json",
        provenance="results/{experiment}/census/{task}/provenance.json",
    log:
        "logs/{experiment}/census_{task}.log",
    params:
        job=job("census"),
        arguments=arguments,
    shell:
        RUN_STAGE
"""


@pytest.mark.dag
def test_one_file_and_one_rule_make_a_stage_of_both_engines(run_by_snakemake: Path, tmp_path: Path) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    (folder / "src/dagrpo/pipeline/stages/census.py").write_text(STAGE)
    rules = folder / "workflow/rules/data.smk"
    rules.write_text(rules.read_text() + RULE)
    snakefile = folder / "Snakefile"
    wanted = 'f"results/{FOLDER}/census/{experiment.train}/census.json",'
    snakefile.write_text(snakefile.read_text().replace("everything(),\n", f"everything(),\n        {wanted}\n", 1))
    clones.run(folder, "python", "-m", "dagrpo", "generate")
    stage = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]["census"]
    assert stage["matrix"] == {"experiment": ["${experiment.name}"], "task": "${experiment.tasks}"}
    assert "data/${experiment.name}/${item.task}" in stage["deps"]
    assert "src/dagrpo/pipeline/stages/census.py" in stage["deps"]
    assert stage["outs"] == ["results/${experiment.name}/census/${item.task}"]
    target = f"results/{clones.NAME}/census/arithmetic/census.json"
    clones.run(folder, "snakemake", "--cores", "all", target)
    assert (folder / target).read_text() == '{\n  "problems": 40\n}\n'
