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


def text(path: Path) -> str:
    done = CliRunner().invoke(app, ["status", "--why", str(path)])
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


def test_a_job_that_was_killed_is_told(made_up: Project) -> None:
    provenance = made_up.provenance("train")
    record_unfinished(provenance)
    assert "a run has begun it and has not ended it" in text(provenance)


def test_a_changed_output_that_a_dry_run_has_found_is_no_run_that_has_begun(made_up: Project) -> None:
    provenance = made_up.provenance("score")
    (provenance.parent / "scores.json").write_text("other")
    record_unfinished(provenance)
    shown = text(provenance)
    assert "scores.json was changed" in shown
    assert "has begun" not in shown


def test_programs_get_one_object(made_up: Project) -> None:
    made_up.write_params(training={"steps": 7})
    done = CliRunner().invoke(app, ["status", "--why", str(made_up.provenance("train")), "--json"])
    told = json.loads(done.stdout)
    assert told["is_up_to_date"] is False
    assert told["own"]["changes"][0]["name"] == "training.steps"


def test_what_no_stage_makes_is_told(made_up: Project) -> None:
    with pytest.raises(UserError, match=r"params.yaml is not made by a stage"):
        explain(Path("params.yaml"))
    for file, job in (("eval/aime/base/scores.json", "score, seed 9, aime, base"), ("policy", "train, seed 9")):
        with pytest.raises(UserError, match=f"{job}, which makes it, has not run to its end here"):
            explain(Path(f"results/{made_up.name}/runs/seed_9/{file}"))
    with pytest.raises(UserError, match=r"train is a stage: name a file that it makes, such as .*/provenance\.json"):
        explain(Path("train"))


def test_a_misspelt_experiment_gets_the_nearest(made_up: Project) -> None:
    misspelt = made_up.name[:-1]
    for given in (misspelt, f"results/{misspelt}/report/report.html"):
        with pytest.raises(
            UserError, match=f"no experiment `{misspelt}` on record .*: the nearest one is `{made_up.name}`"
        ):
            explain(Path(given))
    with pytest.raises(
        UserError, match=f"is an experiment: name one of its files, such as results/{made_up.name}/report"
    ):
        explain(Path(made_up.name))
