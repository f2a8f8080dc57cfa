"""The stages `score` and `report` from their command lines, as the workflow calls them."""

from pathlib import Path

import pytest
from tests.pictures import picture
from tests.pipeline.running import run_stage
from tests.report.synthetic import Files, add_held_out, make_experiment
from tests.rollout.problems import task_row

from dagrpo.data.schema import to_table
from dagrpo.report.build import FIGURE_FILES
from dagrpo.utils.files import read_json, sha256_of
from dagrpo.utils.run_info import write_times
from dagrpo.utils.tables import write_parquet

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """The made-up experiment, with the project's root as the working folder and no tracking."""
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    monkeypatch.chdir(tmp_path)
    return make_experiment(tmp_path)


def test_score_writes_scores_summary_and_provenance(files: Files) -> None:
    completions = files.scores[0].parent / "completions.parquet"
    outputs = ["scores=s/scores.parquet", "summary=s/scores.json", "provenance=s/provenance.json"]
    scoring = {"extractor": "flexible", "confidence": 0.9, "bootstrap_draws": 100, "bootstrap_seed": 0}
    run_stage("score", {"evaluation": {"scoring": scoring}}, [f"completions={completions}"], outputs)
    assert read_json(Path("s/scores.json"))["confidence"] == 0.9
    record = read_json(Path("s/provenance.json"))
    assert record["outputs"]["s/scores.parquet"] == sha256_of(Path("s/scores.parquet"))
    assert list(record["inputs"]) == [str(completions)]


def _report(files: Files) -> None:
    add_held_out(files)
    names = ("scores", "summaries", "metrics", "rollouts", "held_out", "provenance", "splits")
    inputs = [
        f"{'lineage' if name == 'provenance' else name}={path}" for name in names for path in getattr(files, name)
    ]
    written = (
        "html=report.html",
        "summary=summary.md",
        "metrics=metrics.json",
        "scores=scores.csv",
        "curves=curves.csv",
    )
    figures = [f"{file.replace('.', '_')}=r/figures/{file}" for file in FIGURE_FILES]
    outputs = [pair.replace("=", "=r/") for pair in (*written, "provenance=provenance.json")] + figures
    run_stage("report", {"report": {"completions": 2, "smoothing": 3}}, inputs, outputs, experiment="tiny")


@pytest.mark.nightly
def test_report_writes_everything_it_declares_and_shows_the_pictures_of_its_splits(files: Files) -> None:
    write_times(Path("logs/seed_0"), files.metrics[0], [{"timing/update_seconds": 2.0}])
    rows = [task_row(str(row), index=row, images=(picture(),)) for row in range(40)]
    files.splits.append(Path("pictures/arithmetic/test.parquet"))
    write_parquet(files.splits[0], to_table(rows))
    _report(files)
    assert len(read_json(Path("r/provenance.json"))["outputs"]) == 5 + len(FIGURE_FILES)
    page = Path("r/report.html").read_text()
    assert "GRPO report" in page
    assert page.count("<img") == 3, "of two of the best, and the one that is wrong"
    assert "2.000" in Path("logs/times.html").read_text()
    assert [path.name for path in Path("r").iterdir() if "times" in path.name] == []
