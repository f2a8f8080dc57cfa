"""How an execution went, what is kept beside the log, and lineage from provenance files alone."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipeline.running import run_stage
from tests.report.synthetic import make_experiment

from dagrpo.report.times import circumstances, write_times_page
from dagrpo.utils.environment import has_avx2, kind_of_processor
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.provenance import File, lineage_rows
from dagrpo.utils.run_info import (
    Account,
    Stopwatch,
    read_accounts,
    read_times,
    step_seconds,
    times_of,
    write_account,
    write_times,
)
from dagrpo.utils.tables import write_parquet

ACCOUNT = Account(
    stage="train",
    seed=0,
    started="2026-01-02T03:04:05+00:00",
    seconds=125.0,
    attempt=2,
    memory=300 << 20,
    memory_of_children=2000 << 20,
    is_taken_over=False,
    facts={"git.commit": "c0ffee", "git.dirty": "true", "version.torch": "2.0", "hardware.cores": "2"},
)


def provenance(folder: Path, content: str = "made") -> Path:
    path = folder / "results/tiny/runs/seed_0/policy/provenance.json"
    write_json(path, {"stage": content})
    return path


def test_an_account_is_read_for_the_provenance_that_it_names_and_for_no_other(tmp_path: Path) -> None:
    path = provenance(tmp_path)
    log = tmp_path / "logs/seed_0/train.log"
    log.parent.mkdir(parents=True)
    write_account(log, path, ACCOUNT, {})
    assert read_accounts(tmp_path / "logs", [path]) == {path: ACCOUNT}
    provenance(tmp_path, "made again")
    assert read_accounts(tmp_path / "logs", [path]) == {}


def test_a_stopwatch_knows_time_memory_and_machine(tmp_path: Path) -> None:
    account = Stopwatch(tmp_path).account("score", None, 1, is_taken_over=False)
    assert account.memory > 10 << 20
    assert {"version.python", "version.torch", "hardware.cores"} <= account.facts.keys()
    assert "git.commit" not in account.facts, "that folder is no repository"
    assert not any("user" in name for name in account.facts)


def test_every_stage_leaves_one_beside_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    monkeypatch.chdir(tmp_path)
    files = make_experiment(tmp_path, problems=4, steps=2)
    completions = files.scores[0].parent / "completions.parquet"
    outputs = ["scores=s/scores.parquet", "summary=s/scores.json", "provenance=s/provenance.json"]
    scoring = {"extractor": "flexible", "confidence": 0.9, "bootstrap_draws": 100, "bootstrap_seed": 0}
    run_stage("score", {"evaluation": {"scoring": scoring}}, [f"completions={completions}"], outputs)
    (account,) = read_accounts(Path(), [Path("s/provenance.json")]).values()
    assert (account.stage, account.attempt, account.is_taken_over) == ("score", 1, False)
    record = read_json(Path("s/provenance.json"))
    assert "seconds" not in record
    expected = "portable" if has_avx2() else kind_of_processor()
    assert record["environment"]["arithmetic"] == expected, "numpy's intervals depend on it"
    (file,) = Path().rglob("*.execution.json")
    assert read_json(file)["note"] == ""
    monkeypatch.setenv("DAGRPO_TRACKING", "later")
    run_stage("score", {"evaluation": {"scoring": scoring}}, [f"completions={completions}"], outputs)
    assert re.fullmatch(r"\d+-score-[0-9a-f]{8}", read_json(file)["note"]), "by which its run in MLflow is found"


def test_the_page_says_when_from_what_and_on_what(tmp_path: Path) -> None:
    path = provenance(tmp_path)
    hostile = replace(ACCOUNT, facts={**ACCOUNT.facts, "hardware.processor": "<script>\u202e"})
    other = replace(ACCOUNT, stage="score", started="2026-01-03T00:00:00+00:00", facts={"hardware.cores": "8"})
    told = dict(circumstances({path: ACCOUNT, Path("a/d/c"): other}))
    assert (told["Date"], told["Cores"]) == ("2026-01-02 to 2026-01-03", "2, 8")
    page = write_times_page("tiny", [], tmp_path, {path: hostile})
    assert page is not None
    text = page.read_text()
    for shown in ("2026-01-02", "c0ffee with uncommitted changes", "torch 2.0", "2 min, attempt 2"):
        assert shown in text
    assert "0.3 GiB" in text
    assert "2.0 GiB" in text
    assert "seed_0/policy" in text
    assert "<script" not in text
    assert "\u202e" not in text


CURVE = [
    {"reward/mean": 0.5, "timing/update_seconds": 2.0, "timing/rollout_seconds": 1.0, "timing/tokens_per_second": 9.0}
]


def test_times_are_read_of_the_run_that_wrote_them_alone(tmp_path: Path) -> None:
    metrics, times = tmp_path / "metrics.parquet", times_of(CURVE)
    write_parquet(metrics, pa.table({"step": [1]}))
    write_times(tmp_path, metrics, times)
    assert read_times(tmp_path, metrics) == times
    assert step_seconds(times[0]) == 3.0
    write_parquet(metrics, pa.table({"step": [2]}))
    assert read_times(tmp_path, metrics) is None


RAW, DATA, MODEL, POLICY, SCORE = (digit * 64 for digit in "12345")


def provenance_of(path: Path, stage: str, seed: int | None, inputs: dict[str, str], outputs: dict[str, str]) -> Path:
    record: dict[str, Any] = {"stage": stage, "experiment": "demo", "seed": seed, "params": {}, "code": "c", "key": "k"}
    write_json(path, record | {"inputs": inputs, "outputs": outputs})
    return path


def test_rows_run_from_raw_data_to_scores_whatever_the_order_of_the_files(tmp_path: Path) -> None:
    score = provenance_of(tmp_path / "s.json", "score", 0, {"policy/manifest.json": POLICY}, {"scores.json": SCORE})
    train = provenance_of(
        tmp_path / "t.json",
        "train",
        0,
        {"train.parquet": DATA, "model/manifest.json": MODEL},
        {"policy/manifest.json": POLICY},
    )
    model = provenance_of(tmp_path / "m.json", "model", None, {}, {"model/manifest.json": MODEL})
    prepare = provenance_of(tmp_path / "p.json", "prepare", None, {"raw.jsonl": RAW}, {"train.parquet": DATA})
    rows = lineage_rows([score, train, model, prepare])
    assert [row.stage for row in rows] == ["model", "prepare", "train", "score"]
    assert rows[2].inputs == (File("model/manifest.json", MODEL), File("train.parquet", DATA))
    assert (rows[3].seed, rows[3].output, rows[3].digest) == (0, "scores.json", SCORE)


def test_seeds_stand_in_order_within_a_stage(tmp_path: Path) -> None:
    files = [
        provenance_of(tmp_path / f"{seed}.json", "train", seed, {}, {f"seed_{seed}/manifest.json": POLICY})
        for seed in (10, 2, 0)
    ]
    assert [row.seed for row in lineage_rows(files)] == [0, 2, 10]


def test_a_checkpoint_that_is_passed_through_unchanged_makes_no_circle(tmp_path: Path) -> None:
    sft = provenance_of(tmp_path / "w.json", "sft", 0, {"model/m.json": MODEL}, {"sft/m.json": MODEL})
    export = provenance_of(tmp_path / "e.json", "export", 0, {"sft/m.json": MODEL}, {"exported/m.json": MODEL})
    model = provenance_of(tmp_path / "m.json", "model", None, {}, {"model/m.json": MODEL})
    assert [row.stage for row in lineage_rows([export, sft, model])] == ["model", "sft", "export"]
