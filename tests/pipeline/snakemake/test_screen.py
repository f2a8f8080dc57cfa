"""What Snakemake says of parameters, files and mistakes, in one clone without results."""

import re
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import RUN

pytestmark = pytest.mark.dag
PROFILE = "Using workflow specific profile profiles/default for setting default command line arguments.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clones.clone(tmp_path_factory.mktemp("mistakes"))


def _fails(folder: Path, *command: str) -> str:
    """What a command shows that ends with exit code 1."""
    (folder / "output.txt").unlink(missing_ok=True)
    assert clones.start(folder, *command).wait(timeout=300) == 1
    return (folder / "output.txt").read_text().removeprefix(PROFILE)


def test_a_refused_parameter_is_one_sentence(folder: Path) -> None:
    shown = _fails(folder, "snakemake", "--cores", "all", "target", "--config", "sft__learning_rate=-1")
    assert shown == "params.yaml with --config: `sft.learning_rate` is -1: input should be greater than 0.\n"


@pytest.mark.nightly
def test_overrides_and_overlays_are_checked_like_the_file(folder: Path) -> None:
    plan = ("snakemake", "-n", "target")
    assert "unknown key `training.setps`" in clones.refused(folder, *plan, "--config", "training__setps=3")
    (folder / "overlay.yaml").write_text("experiment: {name: other, seeds: [1, 2]}")
    files = ("--configfile", "params.yaml", "overlay.yaml", "--config", "training__steps=3")
    assert re.search(r"^train +2$", clones.run(folder, *plan, *files), re.MULTILINE)
    (folder / "overlay.yaml").unlink()


@pytest.mark.nightly
def test_the_workflow_passes_snakemakes_lint(folder: Path) -> None:
    assert "good condition" in clones.run(folder, "snakemake", "--lint")
    clones.run(folder, "snakefmt", "--check", "Snakefile", "workflow")


@pytest.mark.nightly
def test_a_dotted_override_is_answered_with_the_form_that_works(folder: Path) -> None:
    shown = _fails(folder, "snakemake", "--cores", "all", "target", "--config", "training.steps=3")
    assert shown.endswith("write --config training__steps=3.\n")
    assert "Traceback" not in shown


@pytest.mark.nightly
def test_a_mistake_in_a_stage_is_one_panel_after_the_stages_that_ended_well(folder: Path) -> None:
    params, target = folder / "params.yaml", f"{RUN}/sft/manifest.json"
    params.write_text(params.read_text().replace("max_prompt_tokens: null", "max_prompt_tokens: 3"))
    shown = _fails(folder, "snakemake", "--cores", "all", target)
    assert shown.startswith("3 stages to run: model, prepare, sft\nmodel: tiny_qwen2\n")
    assert re.search(r"^model: tiny_qwen2: done in .* s, 1 of 3 stages$", shown, re.MULTILINE)
    assert shown.count("no train problem is left (40 prompt too long)") == 1
    assert shown.count(f"Log: logs/{clones.NAME}/prepare_arithmetic.log") == 1
    panel = shown[shown.index("A stage failed") :]
    assert f"snakemake --cores all {target}" in panel
    for noise in (
        "stage.py",
        "Traceback",
        "Error in rule",
        "RuleException",
        "WorkflowError",
        "Select jobs",
        ".snakemake/log",
    ):
        assert noise not in shown
