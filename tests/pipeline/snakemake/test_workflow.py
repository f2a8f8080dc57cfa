"""The end of a run: its summary, and what to do next."""

import math
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from tests.everyday import everyday

from dagrpo.config.overlay import merged
from dagrpo.config.presets import composed, known
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.override_runs import OverrideRun
from dagrpo.pipeline.snakemake import workflow
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils import slurm
from dagrpo.utils.files import write_json
from dagrpo_plan.outcome import minutes_on


@pytest.mark.parametrize(("below_make", "programs"), [(False, ""), (True, ".venv/bin/")])
def test_a_run_ends_with_three_commands_that_can_be_given_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], below_make: bool, programs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if below_make:
        monkeypatch.setenv("MAKELEVEL", "1")
    summary = Path("results/mine/report/summary.md")
    summary.parent.mkdir(parents=True)
    summary.write_text("| task | base |\n|---|---|\n| sums | 50% |\n")
    workflow._show_results("mine", 0.001)
    *_, title, show, ui, vary = capsys.readouterr().err.splitlines()
    assert title == "Next:"
    assert [line.partition("#")[0].strip() for line in (show, ui, vary)] == [
        f"{programs}dagrpo show mine",
        f"{programs}dagrpo ui",
        f"{programs}snakemake --cores all target --config training__learning_rate=0.0005",
    ]


def test_the_last_command_compares_an_override_run_or_proposes_the_next_run_by_the_same_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(experiment: str) -> str:
        return workflow._next_commands(experiment, 0.001)[-1][0]

    monkeypatch.chdir(tmp_path)
    assert last("mine~1a2b3c4d").endswith("snakemake --cores all target"), "there is nothing to compare with"
    (tmp_path / "results/mine/report").mkdir(parents=True)
    (tmp_path / "results/mine/report/summary.md").touch()
    assert last("mine~1a2b3c4d").endswith("dagrpo compare mine mine~1a2b3c4d")
    monkeypatch.setattr(workflow, "options", lambda: Namespace(profile=["profiles/slurm"]))
    assert last("mine").endswith("snakemake --profile profiles/slurm target --config training__learning_rate=0.0005")


def _rule(monkeypatch: pytest.MonkeyPatch, stage: str, runtime: dict[str, object], executor: str) -> workflow.Rule:
    monkeypatch.setattr(workflow, "executor_name", lambda: executor)
    params = parse({"experiment": {"name": "mine"}, "runtime": runtime})
    experiment = workflow.Experiment(params, OverrideRun(folder="mine", overrides={}))
    return workflow.Rule([experiment], all_stages()[stage], has_gpus=True)


def test_training_on_several_nodes_asks_slurm_for_them_and_for_the_gpus_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime: dict[str, object] = {"nodes": 2, "training": {"processes": 4}}
    rule = _rule(monkeypatch, "train", runtime, "slurm")
    assert rule.resources == {"nodes": 2, "tasks": 2, "mpi": "srun", "gres": "gpu:4", "tasks_per_gpu": 0}
    assert rule.gpus({"experiment": "mine"}) == 0
    assert _rule(monkeypatch, "sft", runtime, "slurm").resources == {"nodes": 1}
    by_hand = _rule(monkeypatch, "train", runtime, "local")
    assert (by_hand.resources, by_hand.gpus({"experiment": "mine"})) == ({}, 4)


MULTI_GPU = [name for name in known() if re.search(r"^(a100|h100|h200|l40s|rtx4090)(_x\d)?$", name)]


@pytest.mark.parametrize("hardware", everyday(["h100", "a100_x4"], MULTI_GPU))
def test_every_stage_of_every_machine_with_gpus_asks_for_one_node_and_four_cores_a_gpu(
    hardware: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = composed(["qwen2_5_0_5b", "gsm8k", "grpo", hardware])
    monkeypatch.chdir(tmp_path)
    count = int(hardware.partition("_x")[2] or 1)
    gpus = dict.fromkeys(("train", "sft", "sample", "sample_kept", "validate", "difficulty"), count)
    runtime = params.runtime.model_dump()
    runtime["engine"] |= {"max_total_tokens": 65_536, "arguments": {}}  # which need other sections of the preset, too
    any_rule = _rule(monkeypatch, "train", runtime, "slurm")
    for stage in all_stages():
        rule = workflow.Rule([*any_rule._by_folder.values()], all_stages()[stage], has_gpus=True)
        asked = gpus.get(stage, 0)
        assert rule.gpus(WILDCARDS) == asked, stage
        assert rule.resources == ({"nodes": 1} if asked else {}), stage
        cores = {"score": 4, "choose": 4}.get(stage, 1)
        assert rule.threads(WILDCARDS) == (4 * asked if asked else cores), stage
        assert rule.minutes(WILDCARDS | {"seed": "0", "policy": "trained"}, [], 1) <= 1440, stage


def test_a_job_has_the_minutes_of_the_plan_and_a_training_longer_than_its_retries_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On GPUs that SLURM names: half as much again and half an hour, which a further attempt of train does not multiply."""
    params = composed(["qwen2_5_0_5b", "gsm8k", "grpo", "h100"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "gpu_types", lambda: ["h100"])
    monkeypatch.setattr(workflow, "executor_name", lambda: "slurm")
    monkeypatch.setattr(workflow, "retries", lambda: 3)
    planned = minutes_on(params, ["h100"])
    assert planned["train"] > 60
    short = params.model_copy(update={"runtime": params.runtime.model_copy(update={"job_minutes": 30})})
    for given, asked in ((params, math.ceil(1.5 * planned["train"]) + 30), (short, 30)):
        experiment = workflow.Experiment(given, OverrideRun(folder="mine", overrides={}))
        rule = workflow.Rule([experiment], all_stages()["train"], has_gpus=True)
        assert [rule.minutes(WILDCARDS, [], attempt) for attempt in (1, 3)] == [asked, asked]
        experiment.announce()
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("The stage train may take") == 1
    assert (
        f"4 jobs of runtime.job_minutes have 2 h 0 min: set --retries to {math.ceil(planned['train'] / 30) - 1}."
        in told
    )


def test_a_job_that_samples_from_kept_policies_needs_what_one_of_them_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the checkpoints and differences among its inputs one policy at a time is loaded; choose writes one."""
    monkeypatch.chdir(tmp_path)
    chosen = {"training": {"keep_policies": {"every": 20}}, "evaluation": {"policies": {"every": 20}, "choose": "best"}}
    params = parse(merged(chosen, {"data": {"held_out_validation": 10}, "training": {"steps": 60}}))
    experiment = workflow.Experiment(params, OverrideRun(folder="mine", overrides={}))
    run, size = Path("results/mine/runs/seed_0"), 4_000_000_000
    for folder in ("sft", "initial", "kept", "exported", "policy"):
        write_json(run / folder / "manifest.json", {"files": {"x": {"bytes": size, "sha256": "0" * 64}}})
    given = WILDCARDS | {"seed": "0", "policy": "trained"}
    asked = dict[str, tuple[int, int]]()
    for stage in ("sample", "sample_kept", "validate", "export", "choose"):
        rule = workflow.Rule([experiment], all_stages()[stage], has_gpus=True)
        names = [name for name in rule.inputs if name not in ("test", "passages", "completions")]
        paths = [rule.inputs[name](given) for name in names]
        files = [path for each in paths for path in ([each] if isinstance(each, str) else each)]
        asked[stage] = rule.memory(given, files, 1), rule.minutes(given, files, 1)
    assert asked["sample"] == (4000 + 3 * 4000, 240 + 30 * 4)
    assert asked["sample_kept"] == asked["validate"] == asked["sample"]
    assert asked["choose"] == asked["export"] == (2000, 60 + 5 * 4)


WILDCARDS = {"experiment": "mine"}


def test_cores_of_a_job_follow_its_parameter_and_on_cpus_the_threads_of_trainer_and_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime: dict[str, object] = {"cores_per_gpu": 12, "engine": {"threads": 3, "replicas": 2}}
    assert _rule(monkeypatch, "sample", runtime, "slurm").threads(WILDCARDS) == 24
    rule = _rule(monkeypatch, "sample", runtime, "slurm")
    rule._has_gpus = False
    assert (rule.threads(WILDCARDS), rule.gpus(WILDCARDS), rule.resources) == (7, 0, {})
    assert _rule(monkeypatch, "sample", runtime, "local").threads(WILDCARDS) == 1


def test_no_job_asks_for_more_minutes_than_its_partition_has_and_a_group_shares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare = _rule(monkeypatch, "prepare", {}, "slurm")
    assert prepare.minutes(WILDCARDS, [], 2) == 2 * prepare.minutes(WILDCARDS, [], 1)
    assert prepare.minutes(WILDCARDS, [], 1000) == 7 * 24 * 60, "the week that partitions allow"
    runtime: dict[str, object] = {"job_minutes": 120}
    assert _rule(monkeypatch, "train", runtime, "slurm").minutes(WILDCARDS, [], 3) == 120
    monkeypatch.setattr(workflow, "stages_of_a_job", lambda stage: 3)
    assert _rule(monkeypatch, "sft", runtime, "slurm").minutes(WILDCARDS, [], 1) == 40


WORKFLOW = """
import subprocess, sys
from dagrpo.pipeline.snakemake.stop import running_stages, stop_with_stages
stop_with_stages()
stage = subprocess.Popen(["bash", "-c", f"{sys.executable} stage.py; echo ended with $?"])
try:
    stage.wait()
except KeyboardInterrupt:
    stage.wait()
    print("interrupted", running_stages())
    sys.exit(1)  # as Snakemake does
"""
STAGE = """
import signal, subprocess, sys, time
if len(sys.argv) == 1:  # as a stage that supervises its attempts
    attempt = subprocess.Popen([sys.executable, "stage.py", "--attempt"])
    signal.signal(signal.SIGTERM, lambda *_: attempt.terminate())
    print("started", flush=True)
    sys.exit(128 - attempt.wait())
time.sleep(60)
"""


@pytest.mark.parametrize("sent", everyday([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_stops_the_stages_and_interrupts_the_workflow(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "stage.py").write_text(STAGE)
    process = subprocess.Popen(
        [sys.executable, "-c", WORKFLOW],
        cwd=tmp_path,
        stdout=-1,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the tests run in has made of it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(sent)
    output, _ = process.communicate(timeout=120)
    assert output.splitlines() == ["ended with 143", "interrupted []"]
    assert process.returncode == -sent, "a shell sees 128 and the signal: 130 after Ctrl-C"


def test_cells_of_a_sweep_that_would_evaluate_policies_of_different_steps_are_refused(tmp_path: Path) -> None:
    kept = {"training": {"steps": 60, "keep_policies": {"every": 20}}}
    (tmp_path / "steps.yaml").write_text("grid: {training.steps: [40, 60]}\n")
    params = parse(kept | {"evaluation": {"policies": {"every": 20}}})
    with pytest.raises(UserError, match=r"evaluate policies of different steps: give evaluation\.policies one list"):
        workflow._cells(str(tmp_path / "steps.yaml"), params, params)
    same = parse(kept | {"evaluation": {"policies": ["base", "step_20", "trained"]}})
    assert len(workflow._cells(str(tmp_path / "steps.yaml"), same, same)) == 2
