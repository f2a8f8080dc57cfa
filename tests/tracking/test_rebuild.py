"""A history made anew from the files of results, as after `dvc pull` in another clone."""

import os
from pathlib import Path

import pyarrow as pa
from tests.evaluation.test_held_out import row
from tests.tracking.conftest import parent_runs, stage_record, stage_runs

from dagrpo.evaluation.held_out import HELD_OUT
from dagrpo.files import sha256_of, write_json, write_parquet
from dagrpo.tracking.rebuild import rebuild
from dagrpo.tracking.store import open_client, tracking_uri


def trained(root: Path) -> None:
    """What a training of two steps leaves behind, as far as it is read here."""
    folder = Path("results/demo/runs/seed_0")
    metrics, manifest = folder / "metrics.parquet", folder / "rollouts/manifest.json"
    held_out = folder / "held_out.parquet"
    write_parquet(root / metrics, pa.table({"step": [1, 2], "reward/mean": [0.25, 0.5]}))
    write_json(root / manifest, {})
    rows = [row(0, "sums", problem, right=problem < 1) for problem in range(4)]
    write_parquet(root / held_out, pa.Table.from_pylist(rows, schema=HELD_OUT))
    record = stage_record(params={"training": {"steps": 2}})
    outputs = {str(path): sha256_of(root / path) for path in (metrics, manifest, held_out)}
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
    points = open_client(tracking_uri(project)).get_metric_history(parent.info.run_id, "reward/mean")
    assert [(point.step, point.value) for point in points] == [(1, 0.25), (2, 0.5)]
    (held_out,) = open_client(tracking_uri(project)).get_metric_history(parent.info.run_id, "held_out/sums/greedy")
    assert (held_out.step, held_out.value) == (0, 0.25)


def test_stages_are_recorded_in_the_order_of_the_dag(project: Path) -> None:
    trained(project)
    manifests = {name: f"results/demo/runs/seed_0/{name}/manifest.json" for name in ("policy", "exported")}
    for stage, name in (("export", "exported"), ("sample", "sampled")):
        read = {"export": manifests["policy"], "sample": manifests["exported"]}[stage]
        made = {manifests[name]: "b" * 64} if name in manifests else {"results/demo/completions.parquet": "c" * 64}
        record = stage_record(stage, inputs={read: "b" * 64}, params={})
        write_json(project / f"results/demo/{name}.provenance.json", record | {"outputs": made})
    now = project / "results/demo/runs/seed_0/policy/provenance.json"
    os.utime(now, (2e9, 2e9))  # pulled last
    assert rebuild(project) == 3
    assert [run.data.tags["stage"] for run in stage_runs(project)] == ["train", "export", "sample"]


def test_figures_of_a_changed_file_are_left_out(project: Path) -> None:
    trained(project)
    write_parquet(project / "results/demo/runs/seed_0/metrics.parquet", pa.table({"step": [1], "reward/mean": [9.0]}))
    assert rebuild(project) == 1
    (parent,) = parent_runs(project).values()
    assert parent.data.metrics == {}
