"""Lineage from provenance files alone."""

from pathlib import Path
from typing import Any

from dagrpo.utils.files import write_json
from dagrpo.utils.provenance import File, lineage_rows

RAW, DATA, MODEL, POLICY, SCORE = (digit * 64 for digit in "12345")


def provenance(path: Path, stage: str, seed: int | None, inputs: dict[str, str], outputs: dict[str, str]) -> Path:
    record: dict[str, Any] = {"stage": stage, "experiment": "demo", "seed": seed, "params": {}, "code": "c", "key": "k"}
    write_json(path, record | {"inputs": inputs, "outputs": outputs})
    return path


def test_rows_run_from_raw_data_to_scores_whatever_the_order_of_the_files(tmp_path: Path) -> None:
    score = provenance(tmp_path / "s.json", "score", 0, {"policy/manifest.json": POLICY}, {"scores.json": SCORE})
    train = provenance(
        tmp_path / "t.json",
        "train",
        0,
        {"train.parquet": DATA, "model/manifest.json": MODEL},
        {"policy/manifest.json": POLICY},
    )
    model = provenance(tmp_path / "m.json", "model", None, {}, {"model/manifest.json": MODEL})
    prepare = provenance(tmp_path / "p.json", "prepare", None, {"raw.jsonl": RAW}, {"train.parquet": DATA})
    rows = lineage_rows([score, train, model, prepare])
    assert [row.stage for row in rows] == ["model", "prepare", "train", "score"]
    assert rows[2].inputs == (File("model/manifest.json", MODEL), File("train.parquet", DATA))
    assert (rows[3].seed, rows[3].output, rows[3].digest) == (0, "scores.json", SCORE)


def test_seeds_stand_in_order_within_a_stage(tmp_path: Path) -> None:
    files = [
        provenance(tmp_path / f"{seed}.json", "train", seed, {}, {f"seed_{seed}/manifest.json": POLICY})
        for seed in (10, 2, 0)
    ]
    assert [row.seed for row in lineage_rows(files)] == [0, 2, 10]


def test_a_checkpoint_that_is_passed_through_unchanged_makes_no_circle(tmp_path: Path) -> None:
    sft = provenance(tmp_path / "w.json", "sft", 0, {"model/m.json": MODEL}, {"sft/m.json": MODEL})
    export = provenance(tmp_path / "e.json", "export", 0, {"sft/m.json": MODEL}, {"exported/m.json": MODEL})
    model = provenance(tmp_path / "m.json", "model", None, {}, {"model/m.json": MODEL})
    assert [row.stage for row in lineage_rows([export, sft, model])] == ["model", "sft", "export"]
