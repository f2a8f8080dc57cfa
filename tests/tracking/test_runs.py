"""What a stage records, and how its run ends."""

import logging
import math
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from mlflow.tracking import MlflowClient
from tests.tracking.conftest import StartStage, parent_runs, runs_of, stage_record, stage_runs

from dagrpo.errors import Terminated, UserError
from dagrpo.files import sha256_of, write_parquet
from dagrpo.tracking.delivery import last_trouble, settle
from dagrpo.tracking.environment import Process
from dagrpo.tracking.journal import EVENTS, journals
from dagrpo.tracking.runs import stage_run
from dagrpo.tracking.store import open_client, tracking_uri


def client_of(project: Path) -> MlflowClient:
    return open_client(tracking_uri(project))


def test_a_stage_that_succeeds_is_finished_and_nested_under_its_seed(project: Path) -> None:
    with stage_run(stage_record()):
        pass
    assert settle(project)
    (run,) = stage_runs(project)
    parent = parent_runs(project)["0"]
    assert run.info.status == parent.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.info.run_name == "seed 0"
    assert parent.info.end_time >= parent.info.start_time
    assert journals(project) == []


def test_stages_that_all_seeds_share_have_a_parent_of_their_own(project: Path) -> None:
    for record in (stage_record("model", None), stage_record("train", 0), stage_record("train", 1)):
        with stage_run(record):
            pass
    assert settle(project)
    assert {parent.info.run_name for parent in parent_runs(project).values()} == {"all seeds", "seed 0", "seed 1"}
    assert [run.info.run_name for run in stage_runs(project)] == ["model tiny", "train", "train"]


def test_parameters_digests_and_the_key_are_recorded(project: Path) -> None:
    with stage_run(stage_record()) as run:
        run.log_outputs({"results/demo/runs/seed_0/train/manifest.json": "2" * 64})
    assert settle(project)
    data = stage_runs(project)[0].data
    assert data.params == {"training.steps": "3", "training.levels": '["a","b"]'}
    assert data.tags["key"] == "e" * 64
    assert data.tags["code"] == "c" * 64
    assert data.tags["input.data/demo/train.parquet"] == "1" * 64
    assert data.tags["output.results/demo/runs/seed_0/train/manifest.json"] == "2" * 64
    found = client_of(project).search_runs(["1"], f"tags.outputs LIKE '%{'2' * 16}%'")
    assert len(found) == 1


def test_metrics_keep_their_steps_and_infinities_become_nan(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stage_run(stage_record()) as run:
        for step in range(1200):
            run.log_metrics({"pass@1": step / 1200, "ratio": math.inf if step < 2 else 1.0}, step=step)
    assert settle(project)
    run_id = parent_runs(project)["0"].info.run_id
    points = client_of(project).get_metric_history(run_id, "pass_at_1")
    assert [point.step for point in points] == list(range(1200))
    assert points[600].value == 0.5
    ratios = client_of(project).get_metric_history(run_id, "ratio")
    assert [math.isnan(point.value) for point in ratios[:3]] == [True, True, False]
    assert caplog.text.count("ratio is infinite") == 1


def test_a_dataset_is_an_input_with_our_digest_and_its_footer(project: Path) -> None:
    path = project / "train.parquet"
    write_parquet(path, pa.table({"question": ["1+1", "2+2"]}))
    with stage_run(stage_record()) as run:
        run.log_dataset(path, "gsm8k train", sha256_of(path), "training")
    assert settle(project)
    (entry,) = stage_runs(project)[0].inputs.dataset_inputs
    assert entry.dataset.name == "gsm8k train"
    assert entry.dataset.digest == sha256_of(path)[:36]
    assert f'"num_rows": 2, "bytes": {path.stat().st_size}, "sha256": "{sha256_of(path)}"' in entry.dataset.profile
    assert '"name": "question", "type": "string"' in entry.dataset.schema
    assert [(tag.key, tag.value) for tag in entry.tags] == [("mlflow.data.context", "training")]


def test_a_table_and_an_artifact_are_kept_as_they_were(project: Path) -> None:
    figure = project / "figure.svg"
    figure.write_text("<svg/>")
    with stage_run(stage_record()) as run:
        run.log_table("completions", pa.table({"text": ["a", "b"], "ids": [[1], [2, 3]], "reward": [0.0, None]}))
        run.log_artifact(figure, "figures")
        figure.unlink()
    assert settle(project)
    run_id = stage_runs(project)[0].info.run_id
    table = client_of(project).load_table("1", artifact_file="completions.json", run_ids=[run_id])
    assert table["text"].tolist() == ["a", "b"]
    assert table["ids"].tolist() == [[1], [2, 3]]
    assert (project / "mlartifacts" / run_id / "artifacts/figures/figure.svg").read_text() == "<svg/>"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("bad row"), "FAILED"), (Terminated(143), "KILLED"), (KeyboardInterrupt(), "KILLED")],
)
def test_the_status_tells_a_mistake_from_a_stop(project: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), stage_run(stage_record()):
        raise error
    assert settle(project)
    assert [run.info.status for run in runs_of(project)] == [status, status]


@pytest.mark.parametrize(
    ("error", "words"),
    [(UserError("row 3: no answer."), "row 3: no answer."), (KeyError("bug"), "KeyError: 'bug'")],
)
def test_a_run_that_failed_says_why(project: Path, error: Exception, words: str) -> None:
    with pytest.raises(type(error)), stage_run(stage_record()):
        raise error
    assert settle(project)
    assert stage_runs(project)[0].data.tags["error"] == words


def test_a_run_that_was_stopped_has_no_error(project: Path) -> None:
    with pytest.raises(KeyboardInterrupt), stage_run(stage_record()):
        raise KeyboardInterrupt
    assert settle(project)
    assert "error" not in stage_runs(project)[0].data.tags


def test_a_stage_stopped_by_sigterm_is_killed(project: Path, start_stage: StartStage) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert settle(project)
    assert stage_runs(project)[0].info.status == "KILLED"


def test_a_stage_ended_by_sigkill_is_closed_as_killed_with_what_it_logged(
    project: Path, start_stage: StartStage
) -> None:
    start_stage(stage_record(), "os.kill(os.getpid(), signal.SIGKILL)").communicate()
    with stage_run(stage_record()):
        pass
    assert settle(project)
    first, second = stage_runs(project)
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert parent_runs(project)["0"].data.metrics == {"loss": 0.5}
    assert parent_runs(project)["0"].info.status == "FINISHED"


def test_a_run_left_running_without_a_journal_is_closed_by_the_next_of_its_stage(
    project: Path, start_stage: StartStage
) -> None:
    process = start_stage(stage_record(), "time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    settle(project)
    process.kill()
    process.communicate()
    shutil.rmtree(project / ".state")
    with stage_run(stage_record()):
        pass
    assert settle(project)
    assert [run.info.status for run in stage_runs(project)] == ["KILLED", "FINISHED"]


def test_a_run_of_another_machine_is_closed_when_its_outputs_are_made_anew(
    project: Path, start_stage: StartStage
) -> None:
    start_stage(stage_record(), "os.kill(os.getpid(), signal.SIGKILL)").communicate()
    (journal,) = journals(project)
    events = journal / EVENTS
    events.write_text(events.read_text().replace(f'"host":"{Process.current().host}"', '"host":"node-7"'))
    assert settle(project)
    assert journals(project) == [journal]  # perhaps it still runs
    with stage_run(stage_record()):
        pass
    assert settle(project)
    assert [run.info.status for run in stage_runs(project)] == ["KILLED", "FINISHED"]


def test_a_parent_runs_while_any_child_does(project: Path) -> None:
    with stage_run(stage_record("train")):
        with stage_run(stage_record("sample")):
            pass
        settle(project)
        assert {run.data.tags["stage"]: run.info.status for run in stage_runs(project)} == {
            "train": "RUNNING",
            "sample": "FINISHED",
        }
        assert parent_runs(project)["0"].info.status == "RUNNING"
    settle(project)
    assert parent_runs(project)["0"].info.status == "FINISHED"


def test_what_cannot_be_recorded_waits_and_the_cause_is_kept(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = project / "mlflow.db"
    with stage_run(stage_record()):
        database.rename(project / "good.db")
        database.write_bytes(b"no database at all" * 100)
    assert not settle(project)
    assert "file is not a database" in last_trouble(project)
    (project / "good.db").rename(database)
    with stage_run(stage_record("score")):
        assert (
            f"earlier runs are not in MLflow yet: {database.resolve()} cannot record runs (file is not a" in caplog.text
        )
    assert settle(project)
    assert last_trouble(project) == ""
    assert {run.info.status for run in stage_runs(project)} == {"FINISHED"}


def test_a_record_that_cannot_be_written_does_not_stop_the_stage(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), stage_run(stage_record()) as run:
        run.log_artifact(project / "absent.svg")
    assert "the record of this run is incomplete" in caplog.text
    assert settle(project)
    assert stage_runs(project)[0].info.status == "FINISHED"


def test_a_folder_of_journals_that_cannot_be_written_does_not_stop_the_stage(
    fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (fresh / ".state").write_text("no folder")
    with caplog.at_level(logging.WARNING), stage_run(stage_record()) as run:
        run.log_metrics({"loss": 1.0})
    assert "this run is not recorded: " in caplog.text


def test_settings_under_which_nothing_can_be_recorded_end_the_stage_before_it_works(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(ValueError, match="names a folder"), stage_run(stage_record()):
        pytest.fail("the stage must not work")


def test_off_records_nothing(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    with stage_run(stage_record()) as run:
        run.log_metrics({"loss": 1.0})
        run.log_table("completions", pa.table({"a": [1]}))
    assert list(fresh.iterdir()) == []


def test_an_unknown_mode_is_refused_in_a_sentence(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "yes")
    with pytest.raises(ValueError, match="DAGRPO_TRACKING=yes is not known: set it to one of on, off, later"):
        stage_run(stage_record()).__enter__()


def test_four_stages_at_once_on_a_fresh_database_are_all_recorded(
    fresh: Path, start_stage: StartStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    endings = ("pass", "time.sleep(5)", "os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('bad row')")
    stages = ("prepare", "train", "sample", "score")
    processes = [start_stage(stage_record(stage), ending) for stage, ending in zip(stages, endings, strict=True)]
    for process in processes:
        process.communicate()
    assert settle(fresh)
    assert {run.data.tags["stage"]: run.info.status for run in stage_runs(fresh)} == {
        "prepare": "FINISHED",
        "train": "FINISHED",
        "sample": "KILLED",
        "score": "FAILED",
    }
    assert all(run.data.metrics.get("loss") == 0.5 for run in stage_runs(fresh) if run.data.tags["stage"] != "train")
    assert parent_runs(fresh)["0"].data.metrics["loss"] == 0.5
    assert list(parent_runs(fresh)) == ["0"]
