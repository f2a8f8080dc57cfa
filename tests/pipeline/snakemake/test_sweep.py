"""The cells of a sweep are one DAG, in which each job has the parameters of its cell."""

from collections import Counter
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones, planning

from dagrpo.config.places import ROOT
from dagrpo.pipeline.record import declared
from dagrpo.utils.files import read_json

RATE = "training.learning_rate"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "rates.yaml"
    path.write_text(f"seeds: [0, 1]\ngrid: {{{RATE}: [0.001, 0.002, 0.003], training.steps: [7]}}\n")
    return path


def test_a_sweep_plans_all_cells_and_a_page(sweep: Path) -> None:
    with planning.opened(ROOT, {"sweep": str(sweep)}) as workflow:
        jobs = [job for job in workflow.dag.jobs if job.output]
        counts = Counter(job.rule.name for job in jobs)
        assert (counts["prepare"], counts["train"], counts["report"], counts["sweep"]) == (3, 6, 3, 1)
        rates = {
            job.wildcards_dict["experiment"]: declared(Path(job.params.job))["params"]["training"]["learning_rate"]
            for job in jobs
            if job.rule.name == "train"
        }
        assert sorted(rates.values()) == [0.001, 0.002, 0.003]
        assert len({job.params.job for job in jobs if job.rule.name == "sft"}) == 1, "another cell has the same job"
        (page,) = (str(path) for job in jobs if job.rule.name == "sweep" for path in job.output)
        assert page == "results/arithmetic_tiny/sweeps/rates.html"


def test_other_overrides_beside_a_sweep_are_refused(sweep: Path) -> None:
    config = {"sweep": str(sweep), "sft__steps": 3}
    with pytest.raises(Exception, match=r"stands alone: write sft\.steps into params"), planning.opened(ROOT, config):
        pass


@pytest.mark.dag
@pytest.mark.nightly
def test_a_sweep_makes_once_what_cells_share_and_a_new_value_runs_its_cell_alone(
    run_by_snakemake: Path, tmp_path: Path
) -> None:
    folder = clones.copied(run_by_snakemake, tmp_path / "clone")
    sweep, own = folder / "presets/sweeps/kl.yaml", 0.01  # as in clones.TINY
    command = ("target", "--config", "sweep=kl")

    def cells() -> set[str]:
        return {path.name for path in (folder / "results").glob(f"{clones.NAME}~*")}

    sweep.write_text(f"grid: {{algorithm.kl.coefficient: [{own}, 0.1, 0.2]}}\n")
    before = clones.outputs(folder)
    clones.run(folder, "snakemake", "--cores", "2", *command)
    assert before.items() <= clones.outputs(folder).items(), "the cell with the values of params.yaml is the experiment"
    first = cells()
    assert len(first) == 2
    records = [read_json(path) for name in first for path in folder.glob(f"[dmr]*/{name}/**/provenance.json")]
    made = Counter(each["stage"] for each in records if "taken_from" not in each)
    assert made["train"] == 2
    assert not {"prepare", "model", "sft"} & made.keys()
    assert "tiny~" in clones.run(folder, "dagrpo", "sweep", "kl")
    assert "Nothing to be done" in clones.run(folder, "snakemake", "-n", *command)
    sweep.write_text(sweep.read_text().replace("0.2]", "0.2, 0.3]"))
    plan = clones.run(folder, "snakemake", "-n", *command)
    assert [line.split() for line in plan.splitlines() if line.startswith("train ")] == [["train", "1"]]
    assert not any(f"{name}/" in plan for name in first)
