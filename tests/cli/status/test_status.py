"""`dagrpo status`: done, running, stale, stopped, failed or unfinished, by what runs have written down."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.changes.made_up import Project
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.pipeline.failure_report import Failure, path_of
from dagrpo.pipeline.locks import RUNNING
from dagrpo.pipeline.record import STATES
from dagrpo.utils.checksummed_json import write_checksummed
from dagrpo.utils.files import write_json
from dagrpo.utils.locks import Holder, Process


def text() -> str:
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 0, done.exception
    return done.stdout


def objects() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
    return found


def hold(path: Path, process: Process) -> None:
    write_json(path, asdict(Holder(process=process, command="snakemake --cores all target")))


def fail(project: Project, kind: str, sentence: str) -> None:
    log = f"logs/{project.name}/seed_0/train.log"
    failure = Failure(
        stage="train", what="train, seed 0", kind=kind, sentence=sentence, log=log, attempt=1, step=3, time=time.time()
    )
    write_json(path_of("train", Path(log)), asdict(failure))


def train(project: Project, seconds: float, steps: int, of_tasks: Mapping[str, float] | None = None) -> None:
    """A training at its work, held by this process."""
    state = STATES / f"{project.name}-0123456789abcdef"
    for step in range(1, steps + 1):
        content = {
            "metrics": {"reward/mean": step / 10, **(of_tasks or {})},
            "seconds": {"timing/update_seconds": seconds, "timing/tokens_per_second": 1e6},
        }
        write_checksummed(state / f"metrics/step_{step:05d}.json", content)
    rollouts = f"results/{project.name}/runs/seed_0/rollouts/manifest.json"
    write_json(state / "run.json", {"seed": 0, "rollouts": rollouts, "training": {"steps": 120}})
    hold(state / "lock.json", Process.current())


def test_an_experiment_that_is_made_and_unchanged_is_done(made_up: Project) -> None:
    count = len(made_up.provenances)
    assert text() == f"{made_up.name}  done  {count} of {count} stages  (params.yaml)\n"
    assert len(CliRunner().invoke(app, ["status", made_up.name]).stdout.splitlines()) == 1
    misspelt = CliRunner().invoke(app, ["status", made_up.name[:-1]])
    assert f"in this folder: the nearest one is `{made_up.name}`." in str(misspelt.exception)


def test_a_report_gives_the_line_its_score(made_up: Project) -> None:
    score = {"base": 0.504, "trained": 0.934, "difference": 0.43, "interval": "+0.384 to +0.476"}
    path = Path("results", made_up.name, "report/metrics.json")
    write_json(path, {"arithmetic": score, "mean reward": 0.9})
    assert f"{made_up.name}  done  arithmetic 50.4% -> 93.4% (+0.384 to +0.476)" in text()
    assert objects()[0]["score"] == "arithmetic 50.4% -> 93.4% (+0.384 to +0.476)"
    path.write_text("[")
    assert objects()[0]["score"] is None


def test_a_changed_parameter_makes_the_stages_that_read_it_stale_and_says_why(made_up: Project) -> None:
    made_up.write_params(training={"learning_rate": 0.5})
    (found,) = objects()
    assert found["state"] == "stale"
    assert [stale["what"] for stale in found["stale"]] == ["train, seed 0"]
    assert "train, seed 0 would run again: training.learning_rate was" in text()


def test_more_seeds_leave_a_complete_experiment_unfinished(made_up: Project) -> None:
    made_up.write_params(experiment={"seeds": [0, 1]})
    (found,) = objects()
    assert found["expected"] > found["made"] == len(made_up.provenances)
    assert "experiment.seeds was [0] and is [0, 1]" in text()
    made_up.write_params()
    made_up.provenance("report").unlink()
    assert objects()[0]["state"] == "unfinished"


@pytest.mark.parametrize(("kind", "state"), [("mistake", "failed"), ("stopped", "stopped")])
def test_a_failure_tells_its_sentence_and_its_log(made_up: Project, kind: str, state: str) -> None:
    fail(made_up, kind, "the prompt has 8 tokens.")
    assert objects()[0]["state"] == state
    assert f"train, seed 0: the prompt has 8 tokens. Log: logs/{made_up.name}/seed_0/train.log" in text()


def test_rollouts_have_their_size_and_a_file_of_two_names_counts_once(made_up: Project) -> None:
    table = Path("results", made_up.name, "runs/seed_0/rollouts/step_00001.parquet")
    with table.open("wb") as file:
        file.truncate(3 << 29)
    state = STATES / f"{made_up.name}-0123456789abcdef"
    (state / "rollouts").mkdir(parents=True)
    (state / "rollouts" / table.name).hardlink_to(table)
    hold(state / "lock.json", Process.current())
    assert objects()[0]["rollout_bytes"] == 3 << 29
    assert ", 1.5 GiB of rollouts" in text()


def test_a_training_at_its_work_tells_step_reward_and_time_left(made_up: Project) -> None:
    hold(RUNNING / f"{made_up.name}.json", Process.current())
    train(made_up, seconds=60.0, steps=4)
    assert "train, seed 0: step 4 of 120, reward 0.400, 1 h 56 min left" in text()
    (found,) = objects()
    assert (found["state"], found["progress"][0]["seconds_left"]) == ("running", 116 * 60)
    made_up.write_params(training={"learning_rate": 0.5})
    train(
        made_up,
        seconds=60.0,
        steps=5,
        of_tasks={"task/gsm8k/reward_mean": 0.7, "task/gsm8k/groups": 3, "task/math/groups": 0},
    )
    assert "step 5 of 120, reward 0.500 (gsm8k 0.700), 1 h 55 min left" in text(), "math has no attempt in this step"
    assert objects()[0]["progress"][0]["rewards"] == {"gsm8k": 0.7}
    assert "would run again" not in text(), "the run is about to make it again"
    assert objects()[0]["stale"]


def test_a_folder_with_another_dagrpo_than_the_one_that_runs_is_refused(made_up: Project) -> None:
    Path("src/dagrpo").mkdir(parents=True)
    for command in (["status"], ["status", "--why", str(made_up.provenances[0])]):
        done = CliRunner().invoke(app, command)
        assert "This folder has its own dagrpo" in str(done.exception)


def test_a_note_of_a_process_that_has_gone_is_no_run(made_up: Project) -> None:
    own = Process.current()
    gone = Process(pid=own.pid, started=own.started - 1, host=own.host, boot=own.boot)
    hold(RUNNING / f"{made_up.name}.json", gone)
    train(made_up, seconds=60.0, steps=4)
    assert objects()[0]["state"] == "done"


def test_other_experiments_are_listed_too_without_a_plan_of_theirs(made_up: Project) -> None:
    made_up.write_params(experiment={"name": "another"})
    first, second = objects()
    assert (first["experiment"], first["state"], first["made"]) == ("another", "unfinished", 0)
    assert (second["experiment"], second["state"], second["expected"]) == (made_up.name, "done", None)


def test_a_mistake_in_params_hides_no_experiment_and_is_the_last_word(made_up: Project) -> None:
    written = Path("params.yaml").read_text()
    Path("params.yaml").write_text(written.replace("name: ppo_clip", "name: my_lab.broken:LOSS"))
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 1
    assert f"{made_up.name}  done" in done.stdout
    assert "`my_lab.broken:LOSS` is not a loss that can be imported" in str(done.exception)
    assert [each["state"] for each in objects()] == ["done"]


def test_a_stage_whose_folder_was_removed_is_stale_before_those_that_read_it(made_up: Project) -> None:
    folder = made_up.provenance("export").parent
    shutil.rmtree(folder)
    (found,) = objects()
    first, *others = found["stale"]
    assert first["what"] == "export, seed 0"
    assert f"export, seed 0 would run again: {folder} is missing" in text()
    assert all(other["what"] != "export, seed 0" for other in others)
