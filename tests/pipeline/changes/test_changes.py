"""What has changed since a stage ran is found by its records: outputs, parameters, inputs and code, and nothing else."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipeline.changes.made_up import Project

from dagrpo.config.overlay import with_overrides
from dagrpo.config.schema import parse
from dagrpo.pipeline import identity
from dagrpo.pipeline.changes.changes import Change, Changes, Kind, changed_lines
from dagrpo.pipeline.changes.executions import Today, maker_of, read_record
from dagrpo.pipeline.identity import digest_of_code
from dagrpo.pipeline.override_runs import override_run
from dagrpo.utils.environment import version_of


def changes(project: Project, stage: str) -> list[Change]:
    """Of the first job of a stage."""
    return Changes(Today.read()).of(read_record(project.provenance(stage)))


def test_nothing_has_changed_in_what_was_just_made(made_up: Project) -> None:
    finder = Changes(Today.read())
    assert [finder.of(read_record(path)) for path in made_up.provenances] == [[]] * len(made_up.provenances)


def test_a_changed_parameter_touches_the_stages_that_read_it(made_up: Project) -> None:
    before = made_up.params.training.learning_rate
    made_up.write_params(training={"learning_rate": 0.5})
    (change,) = changes(made_up, "train")
    assert str(change) == f"training.learning_rate was {before!r} and is 0.5"
    assert changes(made_up, "score") == []


def test_a_changed_and_a_missing_file_are_an_output_of_one_stage_and_an_input_of_the_next(made_up: Project) -> None:
    train, score = made_up.provenance("sample").parent / "completions.parquet", made_up.provenance("score")
    train.write_text("other")
    assert [str(each) for each in changes(made_up, "sample")] == [f"{train} was changed after it was made"]
    assert [(each.kind, str(each)) for each in changes(made_up, "score")] == [(Kind.INPUT, f"{train} has changed")]
    train.unlink()
    assert [str(each) for each in changes(made_up, "score")] == [f"{train} is missing"]
    assert score.is_file()


def test_a_file_in_a_checkpoint_that_has_other_bytes_of_the_same_size_or_is_gone_is_seen(made_up: Project) -> None:
    content = made_up.provenance("sft").parent / "content"
    content.write_text(content.read_text().swapcase())
    assert [str(each) for each in changes(made_up, "sft")] == [f"{content} was changed after it was made"]
    content.unlink()
    assert [str(each) for each in changes(made_up, "sft")] == [f"{content} is missing"]


def test_the_file_of_code_that_changed_is_named_where_a_job_was_planned_with_it(made_up: Project) -> None:
    made_up.change_code("score", "src/dagrpo/pipeline/stages/score.py", "0" * 64)
    assert [str(each) for each in changes(made_up, "score")] == ["src/dagrpo/pipeline/stages/score.py has changed"]
    for file in Path(".state/jobs").glob("code-*"):  # as in another clone
        file.unlink()
    assert [str(each) for each in changes(made_up, "score")] == ["the code of the stage has changed"]


def test_another_version_of_a_library_is_named_with_both_versions(
    made_up: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "version_of", lambda name: "2.0" if name == "sympy" else version_of(name))
    (change,) = changes(made_up, "score")
    assert str(change) == f"library sympy was {version_of('sympy')} and is 2.0"


def test_of_another_experiment_the_parameters_are_those_it_was_made_with(made_up: Project) -> None:
    made_up.write_params(experiment={"name": "another"}, training={"learning_rate": 0.5})
    assert changes(made_up, "train") == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("training__steps", 7), ("training__gates__truncated", "null"), ("algorithm__loss__name", "gspo")],
    ids=["a value", "null", "a loss without keys of the former one"],
)
def test_parameters_of_an_override_run_are_those_of_the_file_with_its_values(
    made_up: Project, key: str, value: object
) -> None:
    params = parse(with_overrides(made_up.params.model_dump() | {key: value}))
    run, record = override_run(params, made_up.params), read_record(made_up.provenance("train"))
    execution = replace(record, experiment=run.folder, overrides=run.overrides)
    assert Today.read().params_of(execution) == params
    assert Today.read().params_of(replace(execution, overrides={"training.steps": 8})) is None, "of another folder"
    assert Today.read().params_of(replace(execution, experiment=f"another~{run.folder}")) is None


def test_the_maker_of_a_file_is_found_by_its_path_or_its_folder(made_up: Project) -> None:
    policy = made_up.provenance("train").parent
    for path in (policy, policy / "manifest.json", policy / "content", policy.parent / "metrics.parquet"):
        execution = maker_of(path)
        assert execution is not None
        assert execution.what == "train, seed 0"
    assert maker_of(Path("params.yaml")) is None


def test_lines_that_changed_are_found_in_git_by_the_digest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "loss.py"
    texts = ("a = 1\nb = 2\n", "a = 1\nb = 3\n")
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    for text in texts:
        file.write_text(text)
        subprocess.run([*git, "add", "loss.py"], check=True)
        subprocess.run([*git, "commit", "-qm", "c"], check=True)
    file.write_text("a = 1\nb = 4\nc = 5\n")
    old = digest_of_code("loss.py", texts[0].encode())
    assert changed_lines("loss.py", old) == ["2: - b = 2", "2: + b = 4", "3: + c = 5"]
    assert changed_lines("loss.py", "0" * 64) == []
