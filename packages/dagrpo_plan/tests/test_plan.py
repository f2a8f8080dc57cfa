"""Plans of whole experiments: what fits, what is refused and with which remedy, and where times come from."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages.dagrpo_plan.tests.conftest import REVISION, params_with, qwen3
from rich.console import Group
from typer.testing import CliRunner

from dagrpo.cli.application import app
from dagrpo.config.documents import params_yaml
from dagrpo.config.overlay import with_keys
from dagrpo.config.places import ROOT
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.job_files import own_params
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.console import plain_console
from dagrpo.utils.files import sha256_of
from dagrpo.utils.gpu_specs import gpu_named
from dagrpo.utils.run_info import Account, write_account, write_times
from dagrpo_plan import machine as machines
from dagrpo_plan import times
from dagrpo_plan.amounts import GIBIBYTE, Lengths, usual_prompt
from dagrpo_plan.command import render_parts
from dagrpo_plan.machine import Machine, Speed, machine_for, speed_of
from dagrpo_plan.measured import Measured, measured
from dagrpo_plan.models import Models
from dagrpo_plan.outcome import APART, PARTIAL, TOGETHER, Plan, minutes_on, plan_of
from dagrpo_plan.remedy import fullest, remedy_for
from dagrpo_plan.times import START_SECONDS, StageSeconds, sampling_seconds, seconds_of_stages

LONG: dict[str, Any] = {
    "rollout": {"max_new_tokens": 2048, "dtype": "bfloat16"},
    "training": {"max_prompt_tokens": 512, "dtype": "bfloat16"},
}
FLAT = Speed(
    update=1e12, fine_tuning=1e12, sampling=1e12, bandwidth=1e12, cache_bandwidth=1e12, write=1e9, digest=1e9, cores=1
)  # of a device with round figures


def _times(params: Params, speed: Speed | None = FLAT, earlier: Measured | None = None) -> list[StageSeconds]:
    return list(seconds_of_stages(params, Models.of(params), speed, earlier or Measured()))


def test_what_cannot_fit_is_refused_with_a_change_that_makes_it_fit(project: Path) -> None:
    params, machine = qwen3(LONG), machine_for(None, 14)
    refusal = plan_of(params, machine).refusal
    assert refusal is not None
    assert refusal.startswith("The stage train needs ")
    assert "and a GPU with 14.0 GiB has 14.0 GiB: set " in refusal
    models = Models.of(params)
    remedy = remedy_for(params, models, machine)
    assert remedy is not None
    total = fullest(parse(with_keys(params.model_dump(), dict(remedy.values))), models, machine).total
    assert total == remedy.total <= machine.memory
    never = plan_of(params, machine_for(None, 2)).refusal
    assert never is not None
    assert never.endswith("no parameter here makes it fit; choose a smaller model, or a device with more memory.")


def test_a_small_experiment_fits_and_has_a_time_for_every_stage(project: Path) -> None:
    made = plan_of(params_with(), machine_for("4090", None))
    assert made.refusal is None
    assert [stage.stage for stage in made.stages] == ["sft", "train", "sample"]
    assert [stage.how for stage in made.times] == ["estimated"] * 3
    assert all(stage.seconds for stage in made.times)
    assert "51% of the peak of RTX 4090 (83 TFLOP/s in float32)" in made.basis[0]
    (train,) = (stage for stage in made.times if stage.stage == "train")
    assert train.tokens_per_second is not None
    made = plan_of(params_with(), machine_for(None, 24))
    assert made.times == ()
    assert made.basis == ("Times are not estimated for a device whose peaks are not known: name one with --gpu.",)


def test_kept_policies_of_a_seed_take_as_long_as_sampling_as_often_but_start_one_engine(project: Path) -> None:
    machine, seeds = machine_for("4090", None), {"seeds": [0, 1]}
    kept = {
        "training": {"keep_policies": {"every": 1}},
        "evaluation": {"policies": ["base", "step_1", "step_2", "trained"]},
    }
    made = {each.stage: each for each in plan_of(params_with(kept | {"experiment": seeds}), machine).times}
    sample, of_kept = made["sample"], made["sample_kept"]
    assert (sample.runs, of_kept.runs) == (4, 2), (
        "base and trained of two seeds, which are fine-tuned; all steps of each"
    )
    assert sample.seconds is not None
    assert of_kept.seconds == pytest.approx(sample.seconds - 2 * START_SECONDS)


def test_the_minutes_of_a_job_that_samples_several_policies_are_those_of_all(project: Path) -> None:
    kept = {
        "experiment": {"seeds": [0, 1]},
        "data": {"held_out_validation": 10},
        "training": {"keep_policies": {"every": 1}},
        "evaluation": {"policies": ["base", "step_1", "step_2", "trained"], "choose": "best"},
    }
    params = params_with(kept)
    steps, candidates = params.evaluation.steps(params.training), params.evaluation.candidates(params.training)
    minutes = minutes_on(params, ["4090"])
    for stage, policies in (("sample_kept", len(steps)), ("validate", len(candidates))):
        (made,) = (each for each in plan_of(params, machine_for("4090", None)).times if each.stage == stage)
        assert minutes[stage] == pytest.approx((made.seconds or 0) / 2 / 60)
        recorded = times._recorded(stage, params, Measured(stages={stage: 10.0}))
        assert recorded is not None, "a record for each policy and task"
        assert (recorded.runs, recorded.seconds) == (2, 2 * 10.0 * policies * len(times._sampled(params, stage)))
    one_start = START_SECONDS / 60
    assert minutes["sample_kept"] - one_start == pytest.approx(len(steps) * (minutes["sample"] - one_start))


def test_a_recorded_rating_counts_for_each_task_of_a_mixture(project: Path) -> None:
    both = ["arithmetic", "gsm8k"]
    params = params_with(
        {"experiment": {"train": both, "evaluate": ["gsm8k"], "tasks": both}, "difficulty": {"samples": 2}}
    )
    recorded = times._recorded("difficulty", params, Measured(stages={"difficulty": 10.0}))
    assert recorded is not None
    assert recorded.seconds == 20.0


def test_of_training_by_another_program_neither_memory_nor_time_is_reckoned(project: Path) -> None:
    params = params_with(
        {
            "rollout": {"deterministic": False, "dtype": "bfloat16"},
            "training": {"dtype": "bfloat16", "backend": {"name": "verl"}, "evaluate_every": 0},
        }
    )
    plan = plan_of(params, machine_for("H100", None))
    assert [stage.stage for stage in plan.stages] == ["sft", "sample"]
    assert "train" not in {stage.stage for stage in plan.times}
    assert any("The stage train is run by verl" in note for note in plan.notes)


def test_the_time_of_a_step_is_the_one_computed_by_hand(project: Path) -> None:
    """Qwen3-0.6B, one prompt with two completions: 3 passes over 2 sequences of 84 tokens, 20 of them predicted; attention is a hundredth.

    Sampling reads the weights for each of 20 tokens, and of both attempts the cache of (64 + 84) / 2 tokens, in 4 bytes. What is written or
    hashed takes a second per 10^9 bytes: a sync twice the weights and a hash, and every 20th step the digests of gradients and weights,
    and three numbers for each weight.
    """
    shape = {"prompts_per_step": 1, "samples_per_prompt": 2, "steps": 10}
    params = qwen3({"training": shape, "runtime": {"training": {"share_prompts": False}}})
    (train, _) = _times(params)
    body, head = 596_049_920 - 155_582_464, 155_582_464
    update = 3 * 2 * (2 * body * 84 + 2 * head * 20)
    reading, cache = 20 * 596_049_920 * 4, 40 * 74 * 57_344 * 4
    computing = 2 * 596_049_920 * (40 + 64)
    assert train.of_a_step["update"] == pytest.approx(update / 1e12, rel=0.02)
    assert train.of_a_step["rollout"] == pytest.approx((max(reading, computing) + cache) / 1e12)
    assert train.of_a_step["weight sync"] == pytest.approx((2 + 1) * 4 * 596_049_920 / 1e9)
    assert train.of_a_step["digests"] == pytest.approx(2 * 4 * 596_049_920 / 1e9 / 20)
    assert train.of_a_step["saving"] == pytest.approx((1 + 1) * 12 * 596_049_920 / 1e9 / 20)
    assert train.seconds == pytest.approx(10 * sum(train.of_a_step.values()) + 25)


def test_a_served_adapter_is_all_that_is_handed_over_and_kept(project: Path) -> None:
    """Of rank 16: inputs and outputs of the seven layers are 3072, 2048, 2048, 3072 and three times 4096."""
    served = {"training": {"lora": {"rank": 16, "serving": "adapter"}, "staleness": 2, "steps": 10}}
    params, adapter = qwen3(served), 16 * 28 * (3072 + 2048 + 2048 + 3072 + 3 * 4096)
    (train, _) = _times(params)
    assert train.of_a_step["weight sync"] == pytest.approx(3 * 4 * adapter / 1e9)
    assert _kept_weights(params) == [2 * 4 * adapter]
    assert _kept_weights(qwen3({"training": {"staleness": 0}})) == []
    assert _kept_weights(qwen3({"training": {"staleness": 2}})) == [2 * 4 * 596_049_920]


def test_what_is_sampled_ahead_on_servers_elsewhere_takes_the_longer_time_of_both(project: Path) -> None:
    shape = {"prompts_per_step": 1, "samples_per_prompt": 2, "steps": 10}
    elsewhere = {"rollout": {"deterministic": False}, "runtime": {"engine": {"servers": ["http://a:1"]}}}

    def parts(staleness: int, other: dict[str, Any]) -> Mapping[str, float]:
        params = qwen3({"training": shape | {"staleness": staleness}}, other)
        return _times(params)[0].of_a_step

    alone, ahead, shared = parts(0, elsewhere), parts(1, elsewhere), parts(1, {})
    assert ahead["rollout"] == pytest.approx(max(alone["rollout"] - alone["update"], 0.0))
    assert ahead["update"] == alone["update"]
    assert shared["rollout"] == alone["rollout"], "on one device"


def _kept_weights(params: Params) -> list[int]:
    made = plan_of(params, machine_for(None, 1000))
    (train,) = (stage for stage in made.stages if stage.stage == "train")
    return [each.total for each in (*train.on_device, *train.on_host) if each.what == "weights of training.staleness"]


def test_without_data_the_problems_of_an_evaluation_are_those_that_its_source_declares(project: Path) -> None:
    """GSM8K has 1,319 test problems, as the card says later; prompts of 81 tokens, or as many as the prepared data have."""
    task = {"train": "gsm8k", "evaluate": ["gsm8k"], "tasks": ["gsm8k"]}
    params = qwen3({"experiment": task, "training": {"max_prompt_tokens": 1024}})
    (_, declared) = _times(params)
    assert usual_prompt(params, "gsm8k", "train") == 81
    assert usual_prompt(params, "arithmetic", "train") == 1024
    assert usual_prompt(params_with(), "gsm8k", "train") == 64, "a fresh model reads characters"
    card = project / "data/arithmetic_tiny/gsm8k/card.json"
    card.parent.mkdir(parents=True)
    lengths = {"splits": {"train": {"median": 99}, "test": None}}
    card.write_text(json.dumps({"counts": {"train": 7473, "test": 1319}, "prompt_tokens": lengths}))
    (_, counted) = _times(params)
    assert declared.seconds == counted.seconds is not None
    assert usual_prompt(params, "gsm8k", "train") == 99


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is timed in no time."""
    monkeypatch.setattr(machines, "SIDE", 64)
    monkeypatch.setattr(machines, "SECONDS", 0.001)


def test_this_machine_is_timed(project: Path, quick: None) -> None:
    cpu = Machine(name="this machine's CPU", memory=GIBIBYTE, on_gpu=False, is_here=True)
    found = speed_of(cpu, params_with({"training": {"dtype": "bfloat16"}, "runtime": {"engine": {"threads": 2}}}))
    assert found is not None
    assert min(found.update, found.fine_tuning, found.sampling, found.bandwidth, found.write, found.digest) > 0
    assert found.cores
    assert "in bfloat16 by 2 threads) for training; the server with runtime.engine.threads 2" in found.basis


def _taken(seconds: float) -> Account:
    """What is known of a training run that took so long."""
    amounts = {"attempt": 1, "memory": 3 << 20, "memory_of_children": 0}
    return Account(stage="train", seed=0, started="", seconds=seconds, is_taken_over=False, facts={}, **amounts)


@pytest.mark.parametrize(("seconds", "beside"), [(60.0, 42.0), (5.0, None)])
def test_what_a_run_took_beside_its_steps_counts_unless_it_was_resumed(
    seconds: float, beside: float | None, project: Path
) -> None:
    """Its steps took 10, 3 and 5 seconds."""
    params, logs = params_with(), Path("logs/arithmetic_tiny/seed_0")
    logs.mkdir(parents=True)
    _trained_here(params)
    write_account(
        logs / "train.log", Path("results/arithmetic_tiny/runs/seed_0/rollouts/provenance.json"), _taken(seconds), {}
    )
    assert measured(params).beside_steps == beside


def test_a_choice_adds_each_candidate_on_the_validation_rows_and_one_policy_on_the_test_rows(project: Path) -> None:
    choosing = {
        "experiment": {"seeds": [0, 1]},
        "data": {"held_out_validation": 30},
        "training": {"keep_policies": {"every": 20}, "steps": 60},
    }
    plain, chosen = (
        {each.stage: each for each in _times(parse({**choosing, "evaluation": {"choose": choose}}))}
        for choose in (None, "best")
    )
    assert "validate" not in plain
    assert (chosen["sample"].runs - plain["sample"].runs, chosen["validate"].runs) == (2, 2)
    assert (chosen["validate"].seconds or 0) > 0


def test_on_a_cpu_an_engine_with_a_core_of_its_own_samples_beside_the_update(project: Path) -> None:
    def waited_for(threads: int, cores: int) -> float:
        changes = {"training": {"staleness": 1}, "runtime": {"training": {"threads": threads}}}
        speed = replace(FLAT, cores=cores)
        (*_, train, _) = _times(qwen3(changes), speed)
        return train.of_a_step["rollout"]

    assert waited_for(1, 2) < waited_for(2, 2) == waited_for(1, 1)
    assert waited_for(2, 3) == waited_for(1, 2)


def test_prompts_are_shared_on_a_cpu_unless_somebody_says_otherwise_and_the_update_is_faster_for_it(
    project: Path,
) -> None:
    def update(share_prompts: bool | None, speed: Speed | None) -> float:
        changes = {"runtime": {"training": {"share_prompts": share_prompts}}}
        (*_, train, _) = _times(qwen3(changes), speed)
        return train.of_a_step["update"]

    cpu, gpu = replace(FLAT, cores=2), speed_of(machine_for("H100", None), qwen3())
    assert update(None, cpu) == update(True, cpu) < update(False, cpu)
    assert update(None, gpu) == update(False, gpu)


def _trained_here(params: Params) -> None:
    """Records of a training of three steps, the first of which was slow."""
    folder = Path("results", params.experiment.name, "runs/seed_0")
    (folder / "rollouts").mkdir(parents=True)
    metrics = folder / "metrics.parquet"
    metrics.write_bytes(b"of no interest")
    steps = [{"timing/rollout_seconds": seconds, "timing/update_seconds": 1.0} for seconds in (9.0, 2.0, 4.0)]
    write_times(Path("logs", params.experiment.name, "seed_0"), metrics, steps)
    record = {
        "stage": "train",
        "experiment": params.experiment.name,
        "seed": 0,
        "key": "1" * 64,
        "params": own_params(params, all_stages()["train"]),
        "code": "2" * 64,
        "environment": {},
        "inputs": {},
        "outputs": {str(metrics): sha256_of(metrics)},
    }
    (folder / "rollouts/provenance.json").write_text(json.dumps(record))


def test_steps_that_were_taken_here_count_more_than_any_formula(project: Path) -> None:
    params = params_with()
    Path("logs/arithmetic_tiny/seed_0").mkdir(parents=True)
    _trained_here(params)
    longer = params_with({"training": {"steps": 1000}})
    assert measured(longer) == Measured(steps={"rollout": 3.0, "update": 1.0}, number=2)
    (train,) = (stage for stage in _times(longer, earlier=measured(longer)) if stage.stage == "train")
    assert (train.how, train.seconds) == ("measured", 4000 + 25)
    assert measured(params_with({"rollout": {"max_new_tokens": 10}})) == Measured(), "other parameters"


def test_a_model_that_is_not_here_is_named_with_what_to_do(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(project))
    with pytest.raises(UserError, match=r"Qwen/Other at commit c1899de289a0 is not on this machine, .* add --online"):
        plan_of(qwen3({"model": {"repository": "Qwen/Other", "revision": REVISION}}), machine_for("H100", None))


def test_a_gpu_has_a_name_in_many_spellings() -> None:
    assert gpu_named("h100").name == gpu_named("NVIDIA H100").name == "H100"
    assert gpu_named("4090") == gpu_named("RTX 4090") == gpu_named("rtx4090")
    assert gpu_named("H100-PCIe").name == "H100 PCIe"
    with pytest.raises(UserError, match="No GPU `L40` is known here: the nearest is L40S; or give --memory"):
        gpu_named("L40")
    with pytest.raises(UserError, match="give one of them"):
        machine_for("H100", 10)


def _printed(made: Plan) -> str:
    screen = plain_console()
    with screen.capture() as captured:
        screen.print(Group(*render_parts(made)))
    return captured.get()


def test_a_plan_begins_with_likely_and_longest_time_memory_and_disk(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer as long as the limit takes the longest time; a shorter one takes less."""
    machine = machine_for("H200", None)
    made = plan_of(qwen3(LONG), machine)
    assert made.likely is not None
    assert made.longest == sum(stage.seconds or 0 for stage in made.times)
    assert made.likely < 0.7 * made.longest
    assert plan_of(qwen3(LONG), machine, answer=2048).likely == pytest.approx(made.longest)
    first = _printed(made).splitlines()[0]
    assert first.startswith("about ")
    assert " on H200, at most " in first
    assert first.endswith(" of disk")
    assert _printed(plan_of(qwen3(LONG), machine_for(None, 200))).startswith("time not known on a GPU with")
    monkeypatch.syspath_prepend(str(ROOT / "examples/own_task"))
    task = {"train": "roman.numerals", "evaluate": ["roman.numerals"], "tasks": ["roman.numerals"]}
    made = plan_of(qwen3({"experiment": task}), machine_for("H200", None))
    first = _printed(made).splitlines()[0]
    assert first.startswith("about ")
    assert " without sample (unknown before `prepare` has run), " in first


def test_the_minutes_of_a_stage_are_those_of_one_of_its_runs_on_the_slowest_gpu(project: Path) -> None:
    params = qwen3(LONG, {"experiment": {"seeds": [0, 1]}})
    (train,) = (each for each in plan_of(params, machine_for("A100", None)).times if each.stage == "train")
    longest = minutes_on(params, ["h100", "nvidia_a100_80gb"])["train"]
    assert longest == pytest.approx((train.seconds or 0) / 2 / 60)
    assert minutes_on(params, ["h100"])["train"] < longest
    assert minutes_on(params, ["h100", "tesla"]) == {}
    other = qwen3({"model": {"repository": "Qwen/Other", "revision": REVISION}})
    assert minutes_on(other, ["h100"]) == {}


def test_gpus_are_planned_in_turns_with_servers_on_some_of_them_and_with_partial_rollouts(project: Path) -> None:
    """The ways are the same whichever of them an experiment has; one GPU cannot be divided."""
    machine = machine_for("H100", None)
    away = {"rollout": {"deterministic": False}, "training": {"prompts_per_step": 32, "samples_per_prompt": 8}}

    def placed(processes: int, servers: int, *, own_gpus: bool) -> Mapping[str, float]:
        engine = {"replicas": servers, "own_gpus": own_gpus, "release_memory": not own_gpus}
        runtime = {"engine": engine, "training": {"processes": processes, "micro_batch_size": 4}}
        staleness = {"training": {"staleness": int(own_gpus)}}
        return plan_of(qwen3(LONG, away, {"runtime": runtime}, staleness), machine).ways

    together, apart = placed(4, 4, own_gpus=False), placed(2, 2, own_gpus=True)
    assert together.keys() == {TOGETHER, APART, PARTIAL}
    assert together == pytest.approx(apart)
    assert placed(1, 1, own_gpus=False).keys() == {TOGETHER, PARTIAL}


def test_only_partial_rollouts_do_not_wait_for_the_longest_completion() -> None:
    """8 attempts of 10 tokens, or 12 that always run, one token a second: 10 steps, 100 for one of 100, and 8 / 12 of 10."""
    params, shape = qwen3(), Models.of(qwen3())
    slow = replace(FLAT, sampling=1e30, bandwidth=1e30, cache_bandwidth=1e30, per_step=1.0)

    def seconds(longest: int, running: int | None) -> float:
        lengths = Lengths(prompt=5, written=10, whole=15)
        return sampling_seconds(
            params, shape, slow, engine=params.runtime.engine, attempts=8, prompts=2, prompt=5, lengths=lengths,
            longest=longest, running=running,
        )  # fmt: skip

    assert seconds(0, None) == pytest.approx(10)
    assert seconds(100, None) == pytest.approx(100)
    assert seconds(100, 12) == pytest.approx(80 / 12)


def test_the_command_ends_with_the_sentence_and_programs_get_one_object(project: Path) -> None:
    Path("params.yaml").write_text(params_yaml(qwen3(LONG)))
    runner = CliRunner()
    refused = runner.invoke(app, ["plan", "--memory", "14", "--json"])
    assert isinstance(refused.exception, UserError)
    told = json.loads(refused.stdout)
    assert told["refusal"] == str(refused.exception)
    assert {item["name"] for item in told["stages"][0]["on_device"][0]["items"]} >= {"weights", "AdamW states"}
    fits = runner.invoke(app, ["plan", "arithmetic_tiny", "--memory", "10000"])
    assert fits.exit_code == 0
