"""`dagrpo accept`: results of other code count as those of today's, and nothing else is accepted."""

import json
from pathlib import Path

import pytest
from tests.pipeline.changes.made_up import Project
from typer.testing import CliRunner, Result

from dagrpo.cli.application import app
from dagrpo.core.errors import UserError
from dagrpo.pipeline.accepted import ACCEPTED, acceptances, is_accepted
from dagrpo.pipeline.changes.changes import Changes
from dagrpo.pipeline.changes.executions import Today, is_current, read_record
from dagrpo.pipeline.dag import planned_jobs
from dagrpo.pipeline.snakemake.reconcile import reconcile

FILE = "src/dagrpo/pipeline/stages/score.py"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["accept", *arguments, "--because", "a message"])


def test_results_of_code_before_an_edit_count_as_those_of_today(made_up: Project) -> None:
    made_up.change_code("score", FILE, "0" * 64)
    provenance = made_up.provenance("score")
    (job,) = (each for each in planned_jobs(made_up.params, made_up.name) if each.provenance == str(provenance))
    assert not is_current(job, made_up.params)
    before = provenance.read_bytes()
    assert "score: code" in run("score").stdout
    assert is_current(job, made_up.params)
    assert Changes(Today.read()).of(read_record(provenance)) == []
    assert provenance.read_bytes() == before, "a record keeps the code that really ran"
    (entry,) = acceptances()
    assert (entry.stage, entry.before, entry.because) == ("score", read_record(provenance).code, "a message")
    assert "Nothing to accept" in run("score").stdout
    assert f"accepted {entry}" in CliRunner().invoke(app, ["verify", made_up.name]).stdout


def test_a_damaged_list_stops_snakemake_before_anything_is_made_again(made_up: Project) -> None:
    for text in ("<<<<<<< HEAD\n[]", "7", '[{"stage": "train"}]', "[1]"):
        ACCEPTED.write_text(text)
        with pytest.raises(UserError, match=r"accepted\.json"):
            reconcile(made_up.params, made_up.name)


@pytest.mark.parametrize("damage", ["parameter", "input", "output"])
def test_nothing_is_accepted_where_more_than_code_has_changed(damage: str, made_up: Project) -> None:
    made_up.change_code("score", FILE, "0" * 64)
    provenance = made_up.provenance("score")
    if damage == "parameter":
        scoring = made_up.params.evaluation.scoring.model_dump() | {"confidence": 0.9}
        made_up.write_params(evaluation={"scoring": scoring})
    else:
        path = read_record(provenance).inputs if damage == "input" else read_record(provenance).outputs
        Path(next(iter(path))).write_text("other")
    refused = run("score").exception
    assert isinstance(refused, UserError)
    assert not ACCEPTED.exists()


def test_acceptances_add_up_for_one_stage_and_never_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    about = {"stage": "train", "by": "ada", "at": "2026-01-01T00:00:00+00:00", "because": "a message"}
    edits = [("a", "b"), ("b", "c"), ("c", "b")]
    ACCEPTED.write_text(json.dumps([about | {"before": before, "after": after} for before, after in edits]))
    assert is_accepted("train", "a", "c")
    assert is_accepted("train", "c", "c")
    assert not is_accepted("train", "c", "a")
    assert not is_accepted("score", "a", "b")
