"""A history made anew from the files of results, as after `dvc pull` in another clone."""

from pathlib import Path

import pyarrow as pa
from tests.tracking.conftest import parent_runs, stage_record, stage_runs

from dagrpo.files import sha256_of, write_json, write_parquet
from dagrpo.tracking.rebuild import rebuild
from dagrpo.tracking.store import open_client, tracking_uri


def trained(root: Path) -> None:
    """What a training of two steps leaves behind, as far as it is read here."""
    folder = Path("results/demo/runs/seed_0")
    metrics, manifest = folder / "metrics.parquet", folder / "rollouts/manifest.json"
    write_parquet(root / metrics, pa.table({"step": [1, 2], "reward/mean": [0.25, 0.5]}))
    write_json(root / manifest, {})
    record = stage_record(params={"training": {"steps": 2}})
    outputs = {str(path): sha256_of(root / path) for path in (metrics, manifest)}
    write_json(root / folder / "policy/provenance.json", record | {"outputs": outputs})


def test_a_history_is_made_of_provenance_and_metrics_once(project: Path) -> None:
    trained(project)
    assert rebuild(project) == 1
    assert rebuild(project) == 0, "what is on record is left alone"
    (run,) = stage_runs(project)
    (parent,) = parent_runs(project).values()
    assert (run.info.run_name, run.info.status, run.data.tags["rebuilt"]) == (
        "train",
        "FINISHED",
        "from provenance.json",
    )
    for run_id in (run.info.run_id, parent.info.run_id):
        points = open_client(tracking_uri(project)).get_metric_history(run_id, "reward/mean")
        assert [(point.step, point.value) for point in points] == [(1, 0.25), (2, 0.5)]


def test_figures_of_a_changed_file_are_left_out(project: Path) -> None:
    trained(project)
    write_parquet(project / "results/demo/runs/seed_0/metrics.parquet", pa.table({"step": [1], "reward/mean": [9.0]}))
    assert rebuild(project) == 1
    (run,) = stage_runs(project)
    assert run.data.metrics == {}
