"""The frame of a stage: one sentence and exit code 1 for a mistake, a traceback for a bug, nothing half written."""

import errno
from pathlib import Path

import pytest

from dagrpo.code import CODE
from dagrpo.files import read_json, sha256_of
from dagrpo.params.sft import Sft
from dagrpo.stage import Stage, main


@pytest.fixture(autouse=True)
def _in_an_empty_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    monkeypatch.delenv("DVC_STAGE", raising=False)
    Path("in.txt").write_text("raw")


ARGUMENTS = [
    *("--experiment", "e", "--seed", "3", "--params", '{"sft": {"steps": 7}}', "--log", "logs/x.log"),
    *("--input", "source=in.txt", "--output", "result=out/result.txt", "--output", "provenance=out/provenance.json"),
]


def _copy(stage: Stage) -> None:
    stage.output("result").parent.mkdir(exist_ok=True)
    stage.output("result").write_text(stage.input("source").read_text())


def test_provenance_names_the_digest_of_everything_in_and_out() -> None:
    main("sft", _copy, ARGUMENTS)
    record = read_json(Path("out/provenance.json"))
    assert record["inputs"] == {"in.txt": sha256_of(Path("in.txt"))}
    assert record["outputs"] == {"out/result.txt": sha256_of(Path("out/result.txt"))}
    assert (record["stage"], record["seed"], record["params"]) == ("sft", 3, {"sft": {"steps": 7}})


def test_the_key_changes_with_the_input_the_seed_and_the_parameters_and_with_nothing_else() -> None:
    def key(*arguments: str) -> str:
        main("sft", _copy, arguments)
        return str(read_json(Path("out/provenance.json"))["key"])

    first = key(*ARGUMENTS)
    assert key(*ARGUMENTS, "--log", "logs/other.log") == first
    assert key(*ARGUMENTS, "--seed", "4") != first
    assert key(*ARGUMENTS, "--params", '{"sft": {"steps": 8}}') != first
    Path("in.txt").write_text("other")
    assert key(*ARGUMENTS) != first


def test_what_ran_is_noted_for_the_commit_to_dvc() -> None:
    main("sft", _copy, ARGUMENTS)
    (entry,) = Path(".state/ran").iterdir()
    assert read_json(entry)["outputs"] == ["out/result.txt", "out/provenance.json"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("train.parquet row 3: no answer."), "sft: train.parquet row 3: no answer.\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "models/m"),
            "sft: models/m: No space left on device: make room or correct its permissions, then run again.\n",
        ),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence_and_exit_code_1(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(stage: Stage) -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        main("sft", work, ARGUMENTS)
    assert caught.value.code == 1
    assert capsys.readouterr().err == sentence
    assert not Path("out/provenance.json").exists()


def test_a_bug_keeps_its_traceback() -> None:
    def work(stage: Stage) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        main("sft", work, ARGUMENTS)


def test_a_missing_input_is_named_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main("sft", _copy, [*ARGUMENTS, "--input", "source=gone.parquet"])
    assert "gone.parquet is missing: run the stage that makes it first." in capsys.readouterr().err


def test_a_section_is_checked_again_inside_the_stage() -> None:
    def work(stage: Stage) -> None:
        assert stage.section(Sft, "sft").steps == 7
        _copy(stage)

    main("sft", work, ARGUMENTS)
    with pytest.raises(SystemExit):
        main("sft", work, [*ARGUMENTS, "--params", '{"sft": {"stepz": 1}}'])


def test_every_stage_has_a_script() -> None:
    scripts = Path(__file__).parents[1] / "workflow/scripts"
    assert {path.stem for path in scripts.glob("*.py")} == set(CODE)
