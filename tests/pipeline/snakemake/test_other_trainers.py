"""The DAG with other trainers: stand-ins, which train nothing, take their place (packages/*/tests)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones, stand_ins

from dagrpo.utils.files import read_json, sha256_of
from dagrpo.utils.tables import read_parquet

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
ON_TWO_NODES = "megatron_lm_on_two_nodes"  # which are this machine
OF_TWO = {"runtime": {"nodes": 2, "address": "127.0.0.1", "training": {"processes": 1}}}
JOIN = 'while sleep 1; do for each in .state/launches/*.sh; do [ -f "$each" ] && sh "$each" 1; done; done'
RUNS = {
    "verl": ("verl", None),
    "verl_with_pictures": ("verl", stand_ins.PICTURES),
    "megatron_lm": ("megatron_lm", None),
    ON_TWO_NODES: ("megatron_lm", OF_TWO),
}


@pytest.fixture(scope="module", params=RUNS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which Snakemake has run all stages. Training was killed after its third step, and resumed from its second."""
    folder, is_on_two = clones.clone(tmp_path_factory.mktemp(request.param) / "clone"), request.param == ON_TWO_NODES
    stand_ins.write_params(folder, *RUNS[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGRPO_TRACKING", "on")
        process = clones.start(folder, "snakemake", "--cores", "2", "target")
    other = clones.start(folder, "sh", "-c", JOIN) if is_on_two else None
    stand_ins.wait_until_it_hangs(folder)
    clones.kill(folder, "/train-", "--attempt")
    assert process.wait(timeout=900) == 0, (folder / "output.txt").read_text()[-6000:]
    if other:
        other.terminate()
        other.wait()
    return folder


def test_training_that_is_killed_resumes_from_the_trainers_checkpoint_and_all_of_it_is_on_record(
    finished: Path,
) -> None:
    assert stand_ins.lines_of(finished) == [3, 2]
    table = read_parquet(finished / clones.RUN / "metrics.parquet").to_pydict()
    assert table["step"] == [1, 2, 3, 4]
    clones.require_no_process(finished)
    with closing(sqlite3.connect(finished / "mlflow.db")) as database:
        rows = database.execute("select step, value from metrics where key = 'reward/mean' order by step").fetchall()
    assert rows == list(zip(table["step"], table["reward/mean"], strict=True))
    facts = read_json(finished / clones.RUN / "policy/provenance.json")["facts"]
    assert facts["saved_in"] in {"bfloat16", "float32"}
    for planned in finished.glob(".state/*/planned.jsonl"):  # the prompts that it was to draw
        assert facts["verl"] == {"version": "0.9.1", "draws": sha256_of(planned)}


def test_all_is_verified_up_to_date_and_in_the_report_with_lineage_back_to_the_data(finished: Path) -> None:
    clones.run(finished, "dagrpo", "verify", clones.NAME)
    assert "Nothing to be done" in clones.run(finished, "snakemake", "-n", "target")
    assert "up to date" in clones.run(finished, "dvc", "status")
    assert "Greedy accuracy" in (finished / f"results/{clones.NAME}/report/report.html").read_text()
    (scores,) = finished.glob(f"{clones.RUN}/eval/*/trained/scores.json")
    lineage = clones.run(finished, "dagrpo", "lineage", str(scores.relative_to(finished)))
    for origin in ("export", "train", "sft", "prepare"):
        assert origin in lineage
