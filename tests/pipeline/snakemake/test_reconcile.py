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
WEIGHTS, TOKENIZER = MODEL / "model.safetensors", MODEL / "tokenizer.json"


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
    """In any order of time, and as `dvc checkout --relink` leaves it with `cache.type hardlink`.

    Read-only links become copies that can be made again; weights, which no rule declares, stay links.
    """
    shutil.rmtree(prepared / ".snakemake")
    card, manifest, weights = (prepared / path for path in (CARD, MODEL / "manifest.json", WEIGHTS))
    for path in (card, manifest, weights):
        path.chmod(0o444)
        os.link(path, prepared / f"cached_{path.name}")
    manifest.touch()
    assert "Nothing to be done" in _plan(prepared)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (card, manifest, weights)] == [0o644, 0o644, 0o444]
    assert [path.stat().st_nlink for path in (card, manifest, weights)] == [1, 1, 2]
    _set(prepared, "test: 12", "test: 13")
    assert "prepare" in _plan(prepared)
    _set(prepared, "test: 13", "test: 12")
    assert "Nothing to be done" in _plan(prepared)


def test_results_of_accepted_code_are_not_made_again(prepared: Path) -> None:
    provenance = prepared / CARD.with_name("provenance.json")
    whole = provenance.read_text()
    provenance.write_text(json.dumps(json.loads(whole) | {"code": "0" * 64, "job": "prepare-of-other-code"}))
    assert "prepare" in _plan(prepared)
    clones.run(prepared, "dagrpo", "accept", "prepare", "--because", "a message")
    assert "Nothing to be done" in _plan(prepared)
    (prepared / "accepted.json").unlink()
    provenance.write_text(whole)


def test_a_file_that_was_changed_by_hand_is_made_again(prepared: Path) -> None:
    """Its time is that of before."""
    whole = {path: (prepared / path).read_bytes() for path in (CARD, WEIGHTS)}
    for path, content in whole.items():
        _damage(prepared / path, content[:-1] + b"!")
    plan = _plan(prepared)
    assert all(f"\n{stage} " in plan for stage in ("model", "prepare"))
    for path, content in whole.items():
        (prepared / path).unlink()
        (prepared / path).write_bytes(content)


def _damage(path: Path, content: bytes) -> None:
    before = path.stat()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.nightly
def test_a_damaged_file_is_found_before_it_is_used_and_the_same_command_makes_it_anew(prepared: Path) -> None:
    """By Snakemake, which finds it; and by DVC, which compares times and sizes: the stage then refuses the file."""
    whole, params = clones.outputs(prepared), prepared / "params.yaml"
    scores, tokenizer = prepared / clones.RUN / "eval/arithmetic/trained/scores.parquet", prepared / TOKENIZER
    _damage(scores, b"no parquet")
    (prepared / "results/tiny/report/report.html").unlink()
    clones.run(prepared, "snakemake", "--cores", "all", "target")
    assert clones.outputs(prepared) == whole
    text, command = params.read_text(), ("dvc", "repro", "prepare@tiny-arithmetic")
    _damage(tokenizer, tokenizer.read_bytes()[:-1] + b"!")
    _set(prepared, "test: 12", "test: 13")
    said = " ".join(clones.refused(prepared, *command).split())
    assert f"{TOKENIZER} is damaged, or was changed after it was made" in said
    clones.run(prepared, *command)
    params.write_text(text)
    clones.run(prepared, *command)
    assert clones.outputs(prepared) == whole
    assert "up to date" in clones.run(prepared, "dvc", "status")


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
