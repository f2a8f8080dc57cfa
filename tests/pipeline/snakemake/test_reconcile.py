"""Snakemake believes what provenance says: after DVC has put files in place, after a failed job, after a damaged file."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones

pytestmark = pytest.mark.dag
CARD = Path("data/tiny/arithmetic/card.json")
MODEL = Path("models/tiny/tiny_qwen2")


@pytest.fixture(scope="module")
def prepared(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy whose stages model and prepare are asked for again."""
    return clones.copied(run_by_snakemake, tmp_path_factory.mktemp("prepared") / "clone")


def _plan(folder: Path) -> str:
    return clones.run(folder, "snakemake", "-n", "prepared")


def _set(folder: Path, old: str, new: str) -> None:
    params = folder / "params.yaml"
    text = params.read_text()
    assert old in text
    params.write_text(text.replace(old, new))


def test_without_snakemakes_records_what_is_there_is_believed_and_a_change_is_still_seen(prepared: Path) -> None:
    shutil.rmtree(prepared / ".snakemake")
    assert "Nothing to be done" in _plan(prepared)
    _set(prepared, "test: 12", "test: 13")
    assert "prepare" in _plan(prepared)
    _set(prepared, "test: 13", "test: 12")
    assert "Nothing to be done" in _plan(prepared)


def test_read_only_links_to_the_cache_become_copies_that_can_be_made_again(prepared: Path) -> None:
    """As `dvc checkout --relink` leaves them with `cache.type hardlink`; weights, which no rule declares, stay links."""
    card, manifest, weights = (prepared / path for path in (CARD, MODEL / "manifest.json", MODEL / "model.safetensors"))
    for path in (card, manifest, weights):
        path.chmod(0o444)
        os.link(path, prepared / f"cached_{path.name}")
    assert "Nothing to be done" in _plan(prepared)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (card, manifest, weights)] == [0o644, 0o644, 0o444]
    assert [path.stat().st_nlink for path in (card, manifest, weights)] == [1, 1, 2]


def test_results_of_accepted_code_are_not_made_again(prepared: Path) -> None:
    provenance = prepared / CARD.with_name("provenance.json")
    whole = provenance.read_text()
    provenance.write_text(json.dumps(json.loads(whole) | {"code": "0" * 64, "job": "prepare-of-other-code"}))
    assert "prepare" in _plan(prepared)
    clones.run(prepared, "dagrpo", "accept", "prepare", "--because", "a message")
    for _ in range(2):
        assert "Nothing to be done" in _plan(prepared)
    (prepared / "accepted.json").unlink()
    provenance.write_text(whole)


@pytest.mark.nightly
def test_files_in_any_order_of_time_are_believed(prepared: Path) -> None:
    shutil.rmtree(prepared / ".snakemake")
    (prepared / MODEL / "manifest.json").touch()
    assert "Nothing to be done" in _plan(prepared)


def test_a_file_that_was_changed_by_hand_is_made_again(prepared: Path) -> None:
    whole, weights = (prepared / CARD).read_text(), prepared / MODEL / "model.safetensors"
    (prepared / CARD).write_text(json.dumps({}))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    os.utime(weights, (0, 0))  # as a copy of an older file has it
    plan = _plan(prepared)
    assert "prepare" in plan
    assert "model  " in plan
    clones.run(prepared, "snakemake", "--cores", "all", "prepared")
    assert (prepared / CARD).read_text() == whole


@pytest.mark.nightly
def test_a_failed_job_leaves_what_was_there_and_the_way_back_runs_nothing(prepared: Path) -> None:
    before = clones.outputs(prepared)
    _set(prepared, "pass_rates: null", "pass_rates: nowhere.parquet")
    clones.refused(prepared, "snakemake", "--cores", "all", "prepared")
    assert clones.outputs(prepared) == before
    assert "prepare" in _plan(prepared)
    _set(prepared, "pass_rates: nowhere.parquet", "pass_rates: null")
    assert "Nothing to be done" in _plan(prepared)


@pytest.mark.nightly
def test_a_job_that_failed_after_an_edit_of_its_code_is_not_taken_for_done(prepared: Path) -> None:
    stage = prepared / "src/dagrpo/pipeline/stages/prepare.py"
    whole, before = stage.read_text(), clones.outputs(prepared)
    stage.write_text(whole.replace('    folder = job.output("card").parent', '    raise RuntimeError("edited")'))
    process = clones.start(prepared, "snakemake", "--cores", "all", "prepared")
    assert process.wait(timeout=120) == 1
    assert clones.outputs(prepared) == before
    assert "prepare" in _plan(prepared)
    stage.write_text(whole)
    assert "Nothing to be done" in _plan(prepared)


@pytest.mark.nightly
def test_a_path_of_another_experiment_or_of_a_try_is_not_made_with_these_parameters(prepared: Path) -> None:
    report = "results/other/report/report.html"
    plan = ("snakemake", "-n")
    assert f"{report} belongs to the experiment other, and this run is of tiny" in clones.refused(
        prepared, *plan, report
    )
    said = clones.refused(prepared, *plan, str(CARD), "--config", "training__steps=3")
    assert f"{CARD} is not made with overrides: the path of this override run is data/tiny~" in said
