"""From any file or digest up to the raw data, and down to the scores."""

import re
from pathlib import Path

import pytest
from packages.dagrpo_mlflow.tests.conftest import empty_database, fresh, project, start_stage

from dagrpo.core.errors import UserError
from dagrpo.utils.files import sha256_of, write_json, write_text
from dagrpo_mlflow.lineage import Branch, lineage, show
from dagrpo_mlflow.sync import sync

__all__ = ["empty_database", "fresh", "project", "start_stage"]
RAW = "9" * 64
HIDING = re.compile(r"[\x00-\x09\x0b-\x1f\u200b\u202e]")
RUN = "results/demo/runs/seed_0"
STAGES = {  # stage: (seed, inputs, outputs), in the order of the DAG
    "prepare": (None, [], ["data/gsm8k/card.json", "data/gsm8k/train.parquet", "data/gsm8k/test.parquet"]),
    "model": (None, [], ["models/tiny/manifest.json"]),
    "train": (0, ["data/gsm8k/train.parquet", "models/tiny/manifest.json"], [f"{RUN}/policy/manifest.json"]),
    "sample": (
        0,
        ["data/gsm8k/test.parquet", f"{RUN}/policy/manifest.json"],
        [f"{RUN}/eval/gsm8k/trained/completions.parquet"],
    ),
    "score": (0, [f"{RUN}/eval/gsm8k/trained/completions.parquet"], [f"{RUN}/eval/gsm8k/trained/scores.json"]),
}


def execute(root: Path, stage: str, content: str = "one") -> None:
    """Write the stage's outputs and provenance, as the stage frame does."""
    seed, inputs, outputs = STAGES[stage]
    for path in outputs:
        write_text(root / path, f"{stage} {path} {content}")
    if stage == "prepare":
        write_json(root / outputs[0], {"source": "openai/gsm8k", "revision": None, "raw": {"train.jsonl": RAW}})
    record = {
        "stage": stage,
        "experiment": "demo",
        "seed": seed,
        "params": {},
        "code": "c",
        "key": content,
        "inputs": {path: sha256_of(root / path) for path in inputs},
    }
    digests = {path: sha256_of(root / path) for path in outputs}
    place = Path(outputs[-1])
    name = "provenance.json" if place.parent.name != "trained" else f"{place.stem}.provenance.json"
    write_json(root / place.with_name(name), record | {"outputs": digests})


@pytest.fixture
def tree(fresh: Path) -> Path:
    for stage in STAGES:
        execute(fresh, stage)
    return fresh


def files(branch: Branch) -> set[str]:
    return {branch.file.path}.union(*(files(inner) for inner in branch.branches))


def test_a_score_leads_up_to_the_raw_data(tree: Path) -> None:
    up = lineage(f"{RUN}/eval/gsm8k/trained/scores.json").up
    assert {"openai/gsm8k/train.jsonl", "models/tiny/manifest.json", f"{RUN}/policy/manifest.json"} <= files(up)
    assert up.made_by is not None
    assert up.made_by.stage == "score"


def test_raw_data_leads_down_to_every_score_by_its_digest(tree: Path) -> None:
    found = lineage(RAW)
    assert found.up.made_by is None
    assert found.up.branches == ()
    assert f"{RUN}/eval/gsm8k/trained/scores.json" in files(found.down)


def test_a_checkpoint_is_found_by_its_folder_digits_of_its_digest_and_its_content_elsewhere(tree: Path) -> None:
    digest = sha256_of(tree / RUN / "policy/manifest.json")
    for target in (str(tree / RUN / "policy"), digest[:8], f"sha256:{digest}"):
        found = lineage(target)
        assert found.up.file.path == f"{RUN}/policy/manifest.json"
        assert files(found.down) == {
            f"{RUN}/policy/manifest.json",
            f"{RUN}/eval/gsm8k/trained/completions.parquet",
            f"{RUN}/eval/gsm8k/trained/scores.json",
        }
    (tree / RUN / "policy").rename(tree / "mine")
    assert lineage("mine").up.file.path == f"{RUN}/policy/manifest.json"


def test_an_ambiguous_digest_names_its_candidates(tree: Path) -> None:
    for number, path in enumerate(("a", "b")):
        record = {"stage": "prepare", "experiment": "demo", "key": "k", "inputs": {}}
        write_json(
            tree / f"data/{path}/provenance.json", record | {"outputs": {f"data/{path}/x": f"abcdef01{number:056d}"}}
        )
    with pytest.raises(ValueError, match=r"fits 2 files: give more digits of abcdef0100000000 \(data/a/x\), abcdef01"):
        lineage("abcdef01")


@pytest.mark.parametrize("target", ["01234567", "notes.txt", "absent"])
def test_what_is_on_no_record_is_one_sentence(tree: Path, target: str) -> None:
    write_text(tree / "notes.txt", "notes")
    with pytest.raises(UserError, match=target):
        lineage(target)


def test_a_file_changed_by_hand_and_a_missing_one_are_flagged_and_both_trees_printed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = "data/gsm8k/train.parquet"
    write_text(tree / train, "tampered")
    assert lineage(train).up.state == "changed"
    assert lineage(f"{RUN}/policy").up.branches[0].state == "changed"
    show(f"{RUN}/policy")
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if "train.parquet" in line)
    assert "made from" in printed
    assert "used for" in printed
    assert line.split()[-1] == "changed"
    assert "prepare (demo)" in line
    (tree / train).unlink()
    found = lineage(train)
    assert found.up.state == "missing"
    assert f"{RUN}/policy/manifest.json" in files(found.down)


def test_an_unchanged_checkpoint_names_its_other_paths(tree: Path) -> None:
    digest = sha256_of(tree / "models/tiny/manifest.json")
    record = {"stage": "sft", "experiment": "demo", "seed": 0, "key": "k"}
    (tree / RUN / "sft").mkdir()
    (tree / RUN / "sft/manifest.json").write_bytes((tree / "models/tiny/manifest.json").read_bytes())
    write_json(
        tree / RUN / "sft/provenance.json",
        record | {"inputs": {"models/tiny/manifest.json": digest}, "outputs": {f"{RUN}/sft/manifest.json": digest}},
    )
    found = lineage(f"{RUN}/sft")
    assert found.same_content == ("models/tiny/manifest.json",)
    assert [branch.file.path for branch in found.up.branches] == ["models/tiny/manifest.json"]


def test_overwritten_outputs_are_found_in_the_history_of_runs(project: Path) -> None:
    for stage in STAGES:
        execute(project, stage)
    old = sha256_of(project / RUN / "policy/manifest.json")
    assert sync() == len(STAGES)
    execute(project, "train", "two")
    assert sync() == 1
    with pytest.raises(ValueError, match="No stage has read or written"):
        lineage(old[:12].replace(old[0], "f" if old[0] != "f" else "e", 1))
    found = lineage(old[:12])
    assert found.up.state == "overwritten"
    assert found.up.made_by is not None
    assert found.up.made_by.key == "one"
    assert f"{RUN}/eval/gsm8k/trained/scores.json" in files(found.down)


def test_what_records_say_neither_controls_the_terminal_nor_is_markup(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2J\u202e[red]\r\x07\u200b"
    card = tree / "data/gsm8k/card.json"
    write_json(card, {"source": f"hub{hostile}", "revision": hostile, "raw": {f"raw{hostile}": f"9{hostile}"}})
    made = {f"out{hostile}": sha256_of(tree / "models/tiny/manifest.json"), f"between{hostile}": "2" * 64}
    for name, inputs, outputs in (
        ("prepare", {f"in{hostile}": "1" * 64}, made | {"data/gsm8k/card.json": sha256_of(card)}),
        (f"stage{hostile}", {f"between{hostile}": "2" * 64}, {f"last{hostile}": "3" * 64}),
    ):
        record = {"stage": name, "experiment": f"lab{hostile}", "key": "k", "inputs": inputs, "outputs": outputs}
        write_json(tree / f"data/{len(outputs)}/provenance.json", record)
    for target in ("models/tiny", "data/gsm8k/card.json", "2" * 64):
        show(target)
    printed = capsys.readouterr().out
    assert not HIDING.search(printed)
    for said in ("hub", "raw", "stage", "lab", "in", "out", "between", "last"):
        assert f"{said}\\u001b[2J\\u202e[red]\\u000d\\u0007\\u200b" in printed, said
