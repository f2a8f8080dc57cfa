"""Snakemake refuses bad parameters before any work, in one sentence; good ones may come from anywhere."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import ROOT

from dagrpo.config.documents import params_yaml
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params
from dagrpo.pipeline.dag import planned_jobs

EXPERIMENTS = sorted(path.stem for path in (ROOT / "presets/experiments").glob("*.yaml"))
DRY_RUN = ("snakemake", "-n", "target")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clones.clone(tmp_path_factory.mktemp("parameters"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("training: {setps: 3}", "unknown key `training.setps`: the nearest known key is `training.steps`."),
        pytest.param("training: [", "params.yaml is not valid YAML", marks=pytest.mark.nightly),
        pytest.param("", "params.yaml does not hold sections", marks=pytest.mark.nightly),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(folder: Path, text: str, sentence: str) -> None:
    (folder / "params.yaml").write_text(text)
    assert sentence in clones.refused(folder, *DRY_RUN)


@pytest.mark.nightly
def test_overrides_and_overlays_are_checked_like_the_file(folder: Path) -> None:
    (folder / "params.yaml").write_text(params_yaml(Params()))
    assert "unknown key `training.setps`" in clones.refused(folder, *DRY_RUN, "--config", "training__setps=3")
    (folder / "overlay.yaml").write_text("experiment: {name: other, seeds: [1, 2]}")
    plan = clones.run(folder, *DRY_RUN, "--configfile", "params.yaml", "overlay.yaml", "--config", "training__steps=3")
    assert re.search(r"^train +2$", plan, re.MULTILINE)


@pytest.mark.nightly
def test_the_workflow_passes_snakemakes_lint(folder: Path) -> None:
    (folder / "params.yaml").write_text(params_yaml(Params()))
    assert "good condition" in clones.run(folder, "snakemake", "--lint")
    clones.run(folder, "snakefmt", "--check", "Snakefile", "workflow")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_shipped_experiment_is_planned(name: str) -> None:
    params = composed([name], ROOT / "presets")
    jobs = Counter(job.stage for job in planned_jobs(params, name))
    assert jobs["train"] == len(params.experiment.seeds)
    assert jobs["report"] == 1
