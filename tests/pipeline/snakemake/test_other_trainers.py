"""The DAG with other trainers: stand-ins, which train nothing, take their place (tests/trainer/*/stand_in)."""

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones

from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import merged
from dagrpo.config.schema import parse
from dagrpo.utils.files import read_json, sha256_of
from dagrpo.utils.tables import read_parquet

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
STAND_INS = Path(__file__).parents[2] / "trainer"
UPDATES = 2  # of a step
CHANGES = {
    "rollout": {"deterministic": False, "dtype": "bfloat16"},
    "training": {"dtype": "bfloat16", "evaluate_every": 0, "steps": 4, "mini_batches": UPDATES},
    "runtime": {"training": {"save_every": 2, "processes": 2}},
}


ON_TWO_NODES = "megatron_lm_on_two_nodes"  # which are this machine
OF_TWO = {"nodes": 2, "address": "127.0.0.1", "training": {"processes": 1}}


@pytest.fixture(scope="module", params=["verl", "megatron_lm", ON_TWO_NODES])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which Snakemake has run all stages. Training was killed after its third step, and resumed from its second."""
    folder = clones.clone(tmp_path_factory.mktemp(request.param) / "clone")
    trainer, is_on_two = request.param.removesuffix("_on_two_nodes"), request.param == ON_TWO_NODES
    stand_in, python = STAND_INS / trainer / "stand_in", folder / "trainer-python"
    last = 3 if trainer == "verl" else 3 * UPDATES
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{stand_in}:$PYTHONPATH" STAND_IN_HANGS_AFTER={last} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    own = {
        "training": {"backend": {"name": trainer}},
        "runtime": {"backend": {"python": str(python), "source": str(stand_in)}, **(OF_TWO if is_on_two else {})},
    }
    (folder / "params.yaml").write_text(params_yaml(parse(merged(merged(clones.TINY, CHANGES), own))))
    clones.run(folder, "dagrpo", "generate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGRPO_TRACKING", "on")
        process = clones.start(folder, "snakemake", "--cores", "2", "target")
    other = clones.start(folder, "sh", "-c", "mkdir -p .state; exec dagrpo join 1") if is_on_two else None
    _wait_for_step(folder, 3)
    clones.kill(folder, "/train-", "--attempt")
    assert process.wait(timeout=900) == 0, (folder / "output.txt").read_text()[-6000:]
    if other:
        other.terminate()
        other.wait()
    return folder


def _wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 900
    while not any(len(path.read_text().splitlines()) >= step for path in folder.glob(".state/*/attempt_001.jsonl")):
        assert time.monotonic() < deadline, (folder / "output.txt").read_text()[-6000:]
        time.sleep(0.1)


def test_training_that_is_killed_resumes_from_the_trainers_checkpoint(finished: Path) -> None:
    (state,) = {path.parent for path in finished.glob(".state/*/attempt_*.jsonl")}
    lines = [len(path.read_text().splitlines()) for path in sorted(state.glob("attempt_*.jsonl"))]
    assert lines == [3, 2]
    assert read_parquet(finished / clones.RUN / "metrics.parquet")["step"].to_pylist() == [1, 2, 3, 4]
    clones.require_no_process(finished)


def test_provenance_has_verls_version_and_the_digest_of_the_prompts_that_it_was_to_draw(finished: Path) -> None:
    facts = read_json(finished / clones.RUN / "policy/provenance.json").get("facts", {})
    for planned in finished.glob(".state/*/planned.jsonl"):
        assert facts["verl"] == {"version": "0.9.1", "draws": sha256_of(planned)}


def test_all_is_verified_and_up_to_date(finished: Path) -> None:
    clones.run(finished, "dagrpo", "verify", clones.NAME)
    assert "Nothing to be done" in clones.run(finished, "snakemake", "-n", "target")
    assert "up to date" in clones.run(finished, "dvc", "status")


def test_the_report_has_scores_and_lineage_back_to_the_data(finished: Path) -> None:
    page = (finished / f"results/{clones.NAME}/report/report.html").read_text()
    assert "Greedy accuracy" in page
    lineage = clones.run(finished, "dagrpo", "lineage", f"{clones.RUN}/eval/arithmetic/trained/scores.json")
    for origin in ("export", "train", "sft", "prepare"):
        assert origin in lineage


def test_mlflow_has_the_curve_of_the_training(finished: Path) -> None:
    with closing(sqlite3.connect(finished / "mlflow.db")) as database:
        rows = database.execute("select step, value from metrics where key = 'reward/mean' order by step").fetchall()
    table = read_parquet(finished / clones.RUN / "metrics.parquet").to_pydict()
    assert rows == list(zip(table["step"], table["reward/mean"], strict=True))
