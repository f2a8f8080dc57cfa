"""`dagrpo status --why`: the changes of the stage that makes a file, and of the stages before it."""

import json
from pathlib import Path

import pytest
from tests.pipeline.changes.made_up import Project
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.cli.status.why import explain
from dagrpo.config.places import ROOT
from dagrpo.core.errors import UserError
from dagrpo.pipeline.changes import changes
from dagrpo.pipeline.identity import digest_of_code
from dagrpo.pipeline.snakemake_private import record_unfinished


def text(path: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["status", "--why", str(path), *options])
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_a_file_that_is_up_to_date_has_nothing_to_explain(made_up: Project) -> None:
    scores = made_up.provenance("score").parent / "scores.json"
    assert explain(scores).is_up_to_date
    assert "has nothing to do" in text(scores)


def test_a_changed_parameter_is_named_for_its_stage_and_for_those_behind_it(made_up: Project) -> None:
    made_up.write_params(training={"steps": 7})
    steps = made_up.params.training.steps
    policy = explain(made_up.provenance("train").parent)
    assert policy.own is not None
    assert [str(change) for change in policy.own.changes] == [f"training.steps was {steps} and is 7"]
    assert policy.before == ()
    exported = made_up.provenance("export").parent
    assert explain(exported).own is None
    shown = text(exported)
    assert "Nothing of its own has changed, but what comes before it would run again" in shown
    assert f"parameter: training.steps was {steps} and is 7" in shown
    told = json.loads(text(made_up.provenance("train"), "--json"))
    assert told["is_up_to_date"] is False
    assert told["own"]["changes"][0]["name"] == "training.steps"


def test_the_stages_before_are_told_in_the_order_of_the_pipeline(made_up: Project) -> None:
    made_up.write_params(training={"steps": 7}, model={"name": made_up.params.model.name, "dtype": "bfloat16"})
    (made_up.provenance("prepare").parent / "card.json").unlink()
    told = [reason.what for reason in explain(made_up.provenance("report").parent / "report.html").before]
    assert told[:2] == ["model", "prepare, arithmetic"]
    assert "train, seed 0" in told[2:]


def test_the_lines_of_code_that_changed_are_shown(made_up: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    file = "src/dagrpo/pipeline/stages/score.py"
    now = (ROOT / file).read_text()
    then = f"VALUE = 1\n{now}"
    digest = digest_of_code(file, then.encode())
    monkeypatch.setattr(
        changes, "_git", lambda place, *arguments: b"c0ffee" if arguments[0] == "log" else then.encode()
    )
    made_up.change_code("score", file, digest)
    shown = text(made_up.provenance("score").parent / "scores.json")
    assert f"code: {file} has changed" in shown
    assert "line 1: - VALUE = 1" in shown


def test_a_job_that_was_killed_is_told_and_a_changed_output_is_no_run_that_has_begun(made_up: Project) -> None:
    for stage in ("train", "score"):
        record_unfinished(made_up.provenance(stage))
    assert "a run has begun it and has not ended it" in text(made_up.provenance("train"))
    (made_up.provenance("score").parent / "scores.json").write_text("other")
    shown = text(made_up.provenance("score"))
    assert "scores.json was changed" in shown
    assert "has begun" not in shown.partition("comes before it")[0]


def test_what_no_stage_makes_is_told_with_the_nearest(made_up: Project) -> None:
    name, misspelt = made_up.name, made_up.name[:-1]
    nearest = f"no experiment `{misspelt}` on record .*: the nearest one is `{name}`"
    for file, sentence in (
        ("params.yaml", r"params.yaml is not made by a stage"),
        (
            f"results/{name}/runs/seed_9/eval/aime/base/scores.json",
            "score, seed 9, aime, base, which makes it, has not run",
        ),
        (f"results/{name}/runs/seed_9/policy", "train, seed 9, which makes it, has not run to its end here"),
        ("train", r"train is a stage: name a file that it makes, such as .*/provenance\.json"),
        (misspelt, nearest),
        (f"results/{misspelt}/report/report.html", nearest),
        (name, f"is an experiment: name one of its files, such as results/{name}/report"),
    ):
        with pytest.raises(UserError, match=sentence):
            explain(Path(file))
