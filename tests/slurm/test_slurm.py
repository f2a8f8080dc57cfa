"""The tiny experiment as jobs of a real SLURM: killed heads, cancelled jobs and time limits change no byte, and nothing runs twice."""

import shlex
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from snakemake_executor_plugin_slurm.submit_string import get_submit_command  # type: ignore[import-untyped]
from snakemake_executor_plugin_slurm.utils import set_gres_string  # type: ignore[import-untyped]
from tests.pipeline.snakemake import clones, stand_ins
from tests.slurm import cluster

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import parse
from dagrpo.utils import slurm
from dagrpo.utils.files import read_json
from dagrpo.utils.tables import read_parquet
from dagrpo_doctor.command import check_slurm

pytestmark = [pytest.mark.dag, pytest.mark.nightly]
COMMAND = ("taskset", "-c", "0", "snakemake", "--profile", "profiles/slurm", "target")  # a head with one core
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc")  # a head that sees no process of the former one
RUNTIME = cast("dict[str, Any]", clones.TINY["runtime"])
ATTEMPT = ("/train-", "--attempt")  # words on the command line of the trainer


@pytest.fixture(scope="module", autouse=True)
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cluster.started(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture(scope="module")
def run_by_slurm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone whose target was made by two heads: the first was killed while its job trained."""
    folder = clones.clone(tmp_path_factory.mktemp("by_slurm") / "clone")
    head = clones.start(folder, *COMMAND)
    clones.wait_for_step(folder, 2)
    head.kill()
    head.wait()
    second = clones.start(folder, *ELSEWHERE, *COMMAND)
    while cluster.jobs_of("train", states="running"):
        assert len(clones.processes(folder, *ATTEMPT)) < 2
        time.sleep(0.2)
    assert second.wait(timeout=clones.SECONDS) == 0, (folder / "output.txt").read_text()[-4000:]
    return folder


def _without_training(folder: Path) -> Path:
    run = folder / clones.RUN
    made = (run / name for name in ("policy", "rollouts", "metrics.parquet", "held_out.parquet"))
    for path in (*made, *folder.glob(".state/tiny-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


def _outputs_without_devices(folder: Path) -> dict[str, Any]:
    """Return the digests of all outputs; for records of provenance their content, without the device and digests of other records.

    SLURM gives its jobs a GPU, which a record names as the device of its stage. So the digests of records differ, too, and with them the
    records of the stages that read those.
    """
    outputs: dict[str, Any] = dict(clones.outputs(folder))
    for name in filter(lambda name: name.endswith("provenance.json"), outputs):
        record = read_json(folder / name)
        del record["environment"]["device"]
        records = {path for path in record["inputs"] if path.endswith("provenance.json")}
        record["inputs"] = {path: digest for path, digest in record["inputs"].items() if path not in records}
        if records:
            del record["key"]  # computed from their digests, too
        outputs[name] = record
    return outputs


def test_a_head_that_is_killed_leaves_one_trainer_and_the_next_head_uses_its_results(
    run_by_slurm: Path, run_by_snakemake: Path
) -> None:
    assert len(cluster.jobs_of("train")) == 1
    assert "which is gone: " in (run_by_slurm / "output.txt").read_text()
    assert _outputs_without_devices(run_by_slurm) == _outputs_without_devices(run_by_snakemake)


def test_a_cancelled_job_and_one_whose_time_is_over_are_continued(
    run_by_slurm: Path, run_by_snakemake: Path, tmp_path: Path
) -> None:
    folder = _without_training(clones.copied(run_by_slurm, tmp_path / "clone"))
    before = len(cluster.jobs_of("train"))
    head = clones.start(folder, *COMMAND)
    clones.wait_for_step(folder, 2)
    cluster.shown("scancel", cluster.jobs_of("train")[-1])
    clones.wait_for_step(folder, 5)
    cluster.shown("scontrol", "update", f"jobid={cluster.jobs_of('train')[-1]}", "TimeLimit=1")
    assert head.wait(timeout=clones.SECONDS) == 0, (folder / "output.txt").read_text()[-4000:]
    assert len(cluster.jobs_of("train")) - before in (2, 3)  # training may end before SLURM looks at its clock
    assert _outputs_without_devices(folder) == _outputs_without_devices(run_by_snakemake)


def test_a_job_whose_node_fails_is_continued(run_by_slurm: Path, run_by_snakemake: Path, tmp_path: Path) -> None:
    folder = _without_training(clones.copied(run_by_slurm, tmp_path / "clone"))
    head = clones.start(folder, *COMMAND)
    clones.wait_for_step(folder, 2)
    for state in ("down", "resume"):
        cluster.shown("scontrol", "update", "nodename=n1", f"state={state}", "reason=test")
    assert head.wait(timeout=clones.SECONDS) == 0, (folder / "output.txt").read_text()[-4000:]
    assert _outputs_without_devices(folder) == _outputs_without_devices(run_by_snakemake)


def _trained(folder: Path, runtime: dict[str, Any], *command: str) -> dict[str, str]:
    """Train a clone's policy with a change of section runtime; return the digests of what that leaves, without its record."""
    policy = f"{clones.RUN}/policy/manifest.json"
    params = parse(clones.TINY | {"runtime": RUNTIME | runtime})
    (_without_training(folder) / "params.yaml").write_text(params_yaml(params))
    clones.run(folder, "snakemake", policy, *command)
    return _left_by_training(folder)


def _left_by_training(folder: Path) -> dict[str, str]:
    left = ("policy/", "rollouts/", "metrics.parquet", "held_out.parquet")
    made = {name.removeprefix(f"{clones.RUN}/"): digest for name, digest in clones.outputs(folder).items()}
    return {name: digest for name, digest in made.items() if name.startswith(left) and name != "policy/provenance.json"}


ON_BOTH = ("--profile", "profiles/slurm", "--set-resources", "train:slurm_partition=both")


def _require_both_nodes() -> None:
    number = cluster.jobs_of("train")[-1]
    assert cluster.shown("squeue", "--noheader", "--states=all", "--jobs", number, "--format=%N").strip() == "n[1-2]"


def test_two_nodes_train_the_policy_of_two_processes_on_one(run_by_slurm: Path, tmp_path: Path) -> None:
    by_nodes = _trained(clones.copied(run_by_slurm, tmp_path / "nodes"), {"nodes": 2}, *ON_BOTH)
    _require_both_nodes()
    processes = {"training": RUNTIME["training"] | {"processes": 2}}
    assert by_nodes == _trained(clones.copied(run_by_slurm, tmp_path / "processes"), processes, "--cores", "2")


@pytest.mark.parametrize("weight_sync", [None, "distributed"])
def test_a_server_on_a_node_of_its_own_samples_what_one_beside_the_trainer_does(
    weight_sync: str | None, run_by_slurm: Path, tmp_path: Path
) -> None:
    engine = RUNTIME["engine"] | {"nodes": 1, "weight_sync": weight_sync}
    by_nodes = _trained(clones.copied(run_by_slurm, tmp_path / "clone"), {"engine": engine}, *ON_BOTH)
    _require_both_nodes()
    assert by_nodes == _left_by_training(run_by_slurm)


@pytest.mark.parametrize("trainer", ["verl", "megatron_lm"])
def test_another_trainer_on_two_nodes_that_is_cancelled_goes_on_on_two_and_leaves_no_process(
    trainer: str, run_by_slurm: Path, tmp_path: Path
) -> None:
    folder = _without_training(clones.copied(run_by_slurm, tmp_path / "clone"))
    stand_ins.write_params(folder, trainer, {"runtime": {"nodes": 2, "training": {"processes": 1}}})
    wanted = (f"{clones.RUN}/policy/manifest.json", "--set-resources", "train:slurm_partition=both")
    head = clones.start(folder, "snakemake", *COMMAND[4:6], *wanted)
    stand_ins.wait_until_it_hangs(folder)
    cluster.shown("scancel", cluster.jobs_of("train")[-1])
    assert head.wait(timeout=900) == 0, (folder / "output.txt").read_text()[-4000:]
    assert stand_ins.lines_of(folder) == [3, 2]
    assert read_parquet(folder / clones.RUN / "metrics.parquet")["step"].to_pylist() == [1, 2, 3, 4]
    for number in cluster.jobs_of("train")[-2:]:
        on = cluster.shown("squeue", "--noheader", "--states=all", "--jobs", number, "--format=%N").strip()
        assert on == "n[1-2]"
    clones.require_no_process(folder)


def test_jobs_write_no_database_and_the_head_records_their_runs(
    run_by_slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _without_training(clones.copied(run_by_slurm, tmp_path / "clone"))
    monkeypatch.setenv("DAGRPO_TRACKING", "on")
    head = clones.start(folder, *COMMAND)
    followers: set[bool] = set()  # whether one is a process of a job
    while head.poll() is None:
        for process in clones.processes(folder, "dagrpo_mlflow.follow"):
            with suppress(psutil.Error):  # it has just ended
                followers.add(slurm.JOB_ID in process.environ())
        time.sleep(0.5)
    assert head.returncode == 0, (folder / "output.txt").read_text()[-4000:]
    assert followers == {False}, "the head follows the training"
    with sqlite3.connect(folder / "mlflow.db") as database:
        states = [state for (state,) in database.execute("SELECT status FROM runs")]
    assert set(states) == {"FINISHED"}


def test_a_job_has_its_own_threads_whatever_the_head_has(run_by_slurm: Path) -> None:
    lines = cluster.shown("squeue", "--noheader", "--states=all", "--format=%C|%k").splitlines()
    assert {line for line in lines if "difficulty" in line} == {"4|rule_start_convert_difficulty_sft"}


def test_the_default_status_command_is_refused_without_accounts(tmp_path: Path) -> None:
    folder = clones.clone(tmp_path / "clone")
    command = ("snakemake", "--executor", "slurm", "--jobs", "4", "target")
    environment = clones.environment(folder)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "SLURM keeps no accounts here" in done.stderr
    assert "--slurm-status-command squeue" in done.stderr


def test_doctor_finds_all_that_slurm_needs() -> None:
    lines = {each.name: each for each in check_slurm()}
    assert {"SLURM: plug-in", "SLURM: munge", "SLURM: ended jobs", "SLURM: GPUs"} <= set(lines)
    assert all(each.is_there for each in lines.values())


def test_a_job_that_asks_for_a_gpu_sees_one_of_its_own() -> None:
    assert slurm.has_gpus()
    asked = "echo $CUDA_VISIBLE_DEVICES; sleep 2"
    both = [
        subprocess.Popen(["srun", "--gpus=1", "--mem=100M", "sh", "-c", asked], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sorted(process.communicate(timeout=60)[0] for process in both) == ["0\n", "1\n"]


def test_a_job_for_four_gpus_waits_for_one_node_that_has_them_where_two_have_two_each(tmp_path: Path) -> None:
    others = shlex.split("sbatch --parsable --partition=both --gpus=2 --mem=100M --output=/dev/null '--wrap=sleep 60'")
    held = [cluster.shown(*others, f"--nodelist={node}").strip() for node in cluster.NODES]
    job = SimpleNamespace(resources=_Asked(gpu=4, nodes=1, mem_mb=200), threads=4)  # as workflow.Rule asks
    given = {"run_uuid": "four", "slurm_logfile": tmp_path / "log", "workdir": tmp_path}
    given |= {"comment_str": "", "account": "", "partition": "-p both"}
    step = "srun -n1 --cpus-per-task=4 --gpus=4 --nodes=1 sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    command = [*shlex.split(get_submit_command(job, given) + set_gres_string(job)), "--wrap", step]
    try:
        clones.wait_until(tmp_path, lambda: _states(*held) == ["RUNNING"] * 2, 30)
        number = cluster.shown(*command).strip()
        time.sleep(5)
        assert _states(number) == ["PENDING"]
        cluster.shown("scancel", held[0])
        clones.wait_until(tmp_path, lambda: _states(number) == ["COMPLETED"], 60)
    finally:
        subprocess.run(["scancel", *held], check=False)
    assert (tmp_path / "log").read_text().splitlines()[-1] == "0,1,2,3"


class _Asked(dict[str, int]):
    def __getattr__(self, name: str) -> int:
        return self[name]


def _states(*jobs: str) -> list[str]:
    command = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={','.join(jobs)}")
    return cluster.shown(*command).split()
