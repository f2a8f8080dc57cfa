"""Cards of a published policy: the right digest beside each name, and tables that no value can break."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.report.synthetic import list_again

from dagrpo.checkpoints.manifest import Manifest, TensorSummary
from dagrpo.config.schema import parse
from dagrpo.core.experiment import Experiment
from dagrpo.pipeline.changes.executions import ExecutionRecord
from dagrpo.utils.files import read_json, sha256_of, write_json, write_text
from dagrpo.utils.tables import read_parquet, write_parquet
from dagrpo_publish.cards import Publication, model_card
from dagrpo_publish.crate.finished import Finished
from dagrpo_publish.repositories import write_rollouts

NAME, SEED = "tiny", 3
RUN = Path("results", NAME, "runs", f"seed_{SEED}")
DATA = Path("data", NAME, "arithmetic")
SOURCE = "rows|of/a|mirror"


@pytest.fixture(autouse=True)
def _finished_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the card reads of an experiment: a tensor digest in words for each checkpoint."""
    monkeypatch.chdir(tmp_path)
    for stage, digest in (("sft", "digest of the base"), ("exported", "digest of the policy")):
        tensors = TensorSummary(count=1, dtypes={"float32": 1}, digest=digest)
        write_json(RUN / stage / "manifest.json", asdict(Manifest(format="huggingface", files={}, tensors=tensors)))
    for split in ("train", "test"):
        write_text(DATA / f"{split}.parquet", split)
    write_json(
        DATA / "card.json",
        {
            "source": SOURCE,
            "revision": "",
            "origin": "files",
            "counts": {"train": 8, "test": 4},
            "contamination": {"train_problems": 0, "train_problems_left": 0},
            "raw": {"train|new.jsonl": "digest of the raw rows"},
        },
    )
    estimate = {"value": 0.5, "low": 0.25, "high": 0.75}
    write_json(RUN / "eval/arithmetic/trained/scores.json", {"confidence": 0.95, "greedy": estimate})
    write_text(Path("results", NAME, "report/summary.md"), "# tiny\n\nScores.\n")


def _record(stage: str, code: str, *outputs: Path) -> ExecutionRecord:
    return ExecutionRecord(
        provenance=Path(f"{stage}/provenance.json"),
        stage=stage,
        experiment=NAME,
        seed=None,
        params={},
        code=code,
        job=None,
        environment={},
        runtime={},
        overrides={},
        inputs={},
        outputs={str(path): "" for path in outputs},
    )


def _card(policy: str = "trained", restored: Path | None = None, **changed: Any) -> str:
    experiment = {"seeds": [SEED], "tasks": ["arithmetic"], "train": "arithmetic", "evaluate": ["arithmetic"]}
    records = (_record("prepare", "c0de of prepare", DATA / "card.json"), _record("train", "c0de of train"))
    params = parse({"experiment": experiment, **changed})
    finished = Finished(name=NAME, params=params, records=records, accounts={}, code={})
    return model_card(replace(_publication(finished), policy=policy, restored=restored))


def _publication(finished: Finished) -> Publication:
    return Publication(finished=finished, seed=SEED, name=NAME, organisation=None, license=None, with_rollouts=False)


def _table(card: str, header: str) -> list[list[str]]:
    """The cells of a table, as GitHub's Markdown divides them: at bars without a backslash."""
    lines = card.partition(f"| {header} |")[2].splitlines()[2:]
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_every_digest_stands_beside_what_it_is_of() -> None:
    assert dict(_table(_card(), "content | sha256")) == {
        "weights, all tensors": "`digest of the policy`",
        "the checkpoint's manifest.json": f"`{sha256_of(RUN / 'exported/manifest.json')}`",
        "the base policy's weights": "`digest of the base`",
        "prepared data, arithmetic, train": f"`{sha256_of(DATA / 'train.parquet')}`",
        "prepared data, arithmetic, test": f"`{sha256_of(DATA / 'test.parquet')}`",
        r"raw data, rows\|of/a\|mirror/train\|new.jsonl": "`digest of the raw rows`",
        "code of the stage train": "`c0de of train`",
    }


def test_no_parameter_and_no_source_breaks_its_table() -> None:
    rows = _table(_card(algorithm={"teacher": {"solution": "a|b ``` {solution} ` |"}}), "parameter | value")
    assert all(len(row) == 2 for row in rows)
    assert dict(rows)["algorithm.teacher.solution"] == r'```` "a\|b ``` {solution} ` \|" ````'
    header = "task | used for | source | rows: train, test | train rows that share 13 words with a test row"
    ((*cells, _),) = _table(_card(), header)
    assert cells == ["arithmetic", "training and evaluation", r"rows\|of/a\|mirror (files)", "8, 4"]


@pytest.mark.parametrize(("of_the_second", "keeps"), [("generator", True), ("files", False)])
def test_rollouts_of_a_mixture_keep_the_texts_of_problems_only_if_all_its_tasks_are_generated(
    of_the_second: str, keeps: bool, tmp_path: Path
) -> None:
    for task, origin in (("arithmetic", "generator"), ("larger", of_the_second)):
        write_json(Path("data", NAME, task, "card.json"), {"source": "rows", "origin": origin})
    experiment = Experiment(train=["arithmetic", "larger"], evaluate=["arithmetic"], tasks=["arithmetic", "larger"])
    params = parse({}).model_copy(update={"experiment": experiment})
    table = pa.table({"question": ["What is 1 + 1?"], "reward": [1.0]})
    write_parquet(RUN / "rollouts/step_00001.parquet", table)
    list_again(RUN / "rollouts/manifest.json", ["step_00001.parquet"])
    write_rollouts(_publication(Finished(name=NAME, params=params, records=(), accounts={}, code={})), tmp_path / "out")
    assert ("question" in read_parquet(tmp_path / "out/step_00001.parquet").column_names) == keeps


def test_the_card_of_a_kept_step_has_its_step_its_weights_and_its_own_scores_or_none() -> None:
    card = _card("step_40", RUN / "sft", training={"steps": 200})
    assert "This is the policy of step 40 of 200. Its publisher named the step" in card
    assert dict(_table(card, "content | sha256"))["weights, all tensors"] == "`digest of the base`"
    assert "value: 50.0" not in card, "these are the scores of another policy"
    estimate = {"value": 0.625, "low": 0.25, "high": 0.75}
    write_json(RUN / "eval/arithmetic/step_40/scores.json", {"confidence": 0.95, "greedy": estimate})
    assert "value: 62.5" in _card("step_40", RUN / "sft", training={"steps": 200})
    assert "value: 50.0" in _card()
    assert "publisher named" not in _card()


def test_the_card_of_the_base_policy_says_that_it_was_not_trained_with_grpo() -> None:
    card = _card("base", RUN / "sft", training={"steps": 200})
    assert "the policy from which GRPO on arithmetic starts" in card
    assert "trained with GRPO" not in card
    assert "step base" not in card
    assert "reinforcement-learning" not in card
    assert "trained with GRPO on arithmetic" in _card()


def test_the_card_of_the_chosen_policy_says_how_it_was_chosen() -> None:
    estimate = {"problems": 64, "value": 0.5, "low": 0.4, "high": 0.6}
    candidate = {"policy": "step_40", "score": 0.5, "share": 0.75, "tasks": {"arithmetic": estimate}}
    choice = {
        "policy": "step_40",
        "candidates": [candidate, {**candidate, "policy": "trained", "share": 0.25}],
        "draws": [0, 1],
        "means": {"arithmetic": {"greedy": [0.5, 0.52]}},
    }
    write_json(RUN / "chosen/choice.json", choice)
    write_json(RUN / "chosen/manifest.json", read_json(RUN / "exported/manifest.json"))
    scores = {"confidence": 0.95, "greedy": {"value": 0.5, "low": 0.25, "high": 0.75}}
    write_json(RUN / "eval/arithmetic/chosen/scores.json", scores)
    card = _card("chosen", training={"steps": 200})
    assert "interval 24.9 to 75.1)" in card, "0.25 and 1.96 * 0.01 by squares"
    assert "The policy after step 40 is the best of 2 by greedy accuracy on validation rows (64 of arithmetic)" in card
    assert "by a standard deviation of 1.0 points on arithmetic: its intervals on this task hold that." in card
