"""Whole runs with training.staleness: which weights sample what, and that an interrupted run leaves the bytes of a whole one."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.everyday import everyday
from tests.trainer import runs

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.core.errors import Terminated, UserError
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.errors import ServerError
from dagrpo.rollout.prompts import PromptRenderer
from dagrpo.trainer.checks.logprob_agreement import OUTSIDE
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.sampling import prefetch_state
from dagrpo.trainer.sampling.training_prompts import read_training_prompts
from dagrpo.trainer.state import states
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.usefixtures("stage_handlers")
Inputs = tuple[Path, Path]
STEPS = 5


def _stale(
    inputs: Inputs, folder: Path, staleness: int, steps: int = STEPS, save_every: int = 2, **sections: Any
) -> TrainingRun:
    run = runs.training_run(inputs, folder / "state", folder / f"{steps}", steps=steps, save_every=save_every)
    return runs.changed(runs.changed(run, training={"staleness": staleness}), **sections)


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> dict[int, TrainingRun]:
    """Five steps without an interruption, by staleness."""
    made = {staleness: _stale(inputs, tmp_path_factory.mktemp("whole"), staleness) for staleness in (1, 2)}
    for run in made.values():
        runs.execute(run)
    return made


def test_the_engine_gets_weights_between_two_batches_and_each_batch_those_of_the_lag(
    inputs: Inputs, tmp_path: Path
) -> None:
    asked, reported = runs.execute(_stale(inputs, tmp_path, 1, steps=4))
    first = ["load step_0", "generate", "generate", "load step_1", "generate", "load step_2", "generate", "load step_3"]
    assert asked == first
    assert [metrics["rollout/staleness"] for _, metrics in reported] == [0, 1, 1, 1]
    assert all(metrics["rollout/ahead_seconds"] > 0 for _, metrics in reported)


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_name_the_weights_that_sampled_them_and_the_gate_tells_how_far_the_policy_has_come(
    staleness: int, whole: dict[int, TrainingRun]
) -> None:
    run = whole[staleness]
    versions = [
        read_parquet(run.rollouts.with_name(f"step_{n + 1:05d}.parquet"))["weight_version"] for n in range(STEPS)
    ]
    assert [set(each.to_pylist()) for each in versions] == [{f"step_{max(0, n - staleness)}"} for n in range(STEPS)]
    metrics = read_parquet(run.metrics)
    differences = metrics["policy/logprob_difference_mean"].to_pylist()
    assert differences[0] < 1e-5 < min(differences[1:])
    assert metrics[OUTSIDE].to_pylist()[0] == 0.0


@pytest.mark.parametrize(("staleness", "stopped"), everyday([(2, 3)], product([1, 2], [1, 2, 3, 4])))
def test_a_run_that_is_killed_leaves_the_bytes_of_a_whole_one(
    staleness: int, stopped: int, inputs: Inputs, whole: dict[int, TrainingRun], tmp_path: Path
) -> None:
    run = _stale(inputs, tmp_path, staleness, save_every=1 if stopped % 2 else 2)
    runs.execute(run, stop=lambda step: step == stopped)
    runs.execute(run)
    assert runs.bytes_of(run) == runs.bytes_of(whole[staleness])


class ToldWhileSampling(runs.ScriptedEngine):
    """An engine in whose batch of the step `at`, from 0, the run is told to stop."""

    at = 0

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        is_batch = requests[0].temperature > 0
        if is_batch and self.asked.count("generate") == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
            assert self.interrupted.wait(60), "nobody ends the thread"
            raise ServerError("interrupted")
        return super().generate(requests, **waves)


@pytest.mark.parametrize(("staleness", "at"), everyday([(1, 3)], product([1, 2], range(5))))
def test_a_run_that_is_told_to_stop_saves_its_steps_and_goes_on_to_the_same_bytes(
    staleness: int,
    at: int,
    inputs: Inputs,
    whole: dict[int, TrainingRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ToldWhileSampling, "at", at)
    run = _stale(inputs, tmp_path, staleness, save_every=100)
    with pytest.raises(Terminated):
        runs.execute(run, ToldWhileSampling)
    runs.execute(run)
    assert runs.bytes_of(run) == runs.bytes_of(whole[staleness])


@pytest.mark.nightly
@pytest.mark.parametrize("staleness", everyday([2], [1, 2]))
def test_more_steps_extend_a_finished_run_to_the_bytes_of_a_run_that_had_them_from_the_start(
    staleness: int, inputs: Inputs, whole: dict[int, TrainingRun], tmp_path: Path
) -> None:
    runs.execute(_stale(inputs, tmp_path, staleness, steps=3))
    longer = _stale(inputs, tmp_path, staleness)
    runs.execute(longer)
    assert runs.bytes_of(longer) == runs.bytes_of(whole[staleness])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"dynamic_sampling": {"oversampling": 1.5}, "retire_at": 0.5}},
        {"training": {"mini_batches": 2}, "algorithm": {"advantage": {"name": "remax"}}},
    ],
    ids=["prompts beyond the batch, and retired ones", "a greedy baseline, and several mini-batches"],
)
def test_other_parameters_go_on_to_the_same_bytes(changes: dict[str, Any], inputs: Inputs, tmp_path: Path) -> None:
    uncut, cut = (_stale(inputs, tmp_path / name, 1, **changes) for name in ("uncut", "cut"))
    runs.execute(uncut)
    runs.execute(cut, stop=lambda step: step == 3)
    runs.execute(cut)
    assert runs.bytes_of(cut) == runs.bytes_of(uncut)


class Failing(runs.ScriptedEngine):
    """One whose third batch cannot be had."""

    def generate(self, requests: Sequence[SamplingRequest], **waves: Any) -> list[Completion]:
        if requests[0].temperature > 0 and self.asked.count("generate") == 2:
            raise ServerError("The SGLang server died (exit code 9)")
        return super().generate(requests, **waves)


def test_what_goes_wrong_ahead_is_the_error_that_it_would_have_been_and_costs_no_finished_step(
    inputs: Inputs, whole: dict[int, TrainingRun], tmp_path: Path
) -> None:
    run = _stale(inputs, tmp_path, 1, save_every=100)
    with pytest.raises(ServerError, match=r"The SGLang server died \(exit code 9\)"):
        runs.execute(run, Failing)
    assert [path.name for path in run.state.glob("step_*")] == ["step_00002"]
    runs.execute(run)
    assert runs.bytes_of(run) == runs.bytes_of(whole[1])


def test_a_policy_that_no_correction_reaches_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    rash = {"learning_rate": 1.0, "learning_rate_warmup_steps": 0, "max_grad_norm": 1e6}
    run = _stale(inputs, tmp_path, 1, training=rash)
    with pytest.raises(UserError, match=r"step 2: the policy has moved by .* nats per token since earlier weights"):
        runs.execute(run)


def _train(world: World, inputs: Inputs, folder: Path) -> list[str]:
    return runs.execute(_stale(inputs, folder, 1), world=world)[0]


@pytest.mark.nightly
def test_two_processes_go_on_where_one_was_interrupted_and_leave_its_policy(
    inputs: Inputs, whole: dict[int, TrainingRun], tmp_path: Path
) -> None:
    run = _stale(inputs, tmp_path, 1)
    runs.execute(run, stop=lambda step: step == 3)
    assert states.at(run.state, 2).notes["ahead"] == 1
    asked, _ = runs.launch(2, _train, inputs, tmp_path)
    assert asked == ["load step_2", "generate", "load step_3", "generate", "load step_4"]
    assert all((d.largest or 0.0) < 2e-4 for d in compare(run.policy, whole[1].policy).differences)


def test_a_batch_is_read_back_to_the_bit(inputs: Inputs, tmp_path: Path) -> None:
    """Of a run whose batches have everything: what was thrown away, a teacher's and greedy ones' figures, a part of the vocabulary."""
    everything = {
        "advantage": {"name": "remax"},
        "loss": {"name": "on_policy_distillation"},
        "teacher": {"source": "folder", "folder": "elsewhere"},
    }
    more = {"dynamic_sampling": {"oversampling": 1.5}}
    run = _stale(inputs, tmp_path, 1, training=more, algorithm=everything, rollout={"top_k": 50})
    run = replace(run, teacher=inputs[0].with_name("model"))
    runs.execute(run, stop=lambda step: step == 3)
    saved = states.at(run.state, 2).folder
    problems = read_training_prompts(
        [*run.train_splits.values()], PromptRenderer(load_tokenizer(run.initial), run.rollout), run.training
    )
    read = prefetch_state.read(saved, problems)
    (batch,) = read.batches.values()
    assert batch.step == 2
    assert batch.teacher_logprobs is not None
    assert batch.greedy_rewards is not None
    assert len(batch.discarded) == 8
    assert batch.graded[0].trajectory.samples[0].support
    prefetch_state.write(tmp_path / "again", read)
    name = f"{prefetch_state.FOLDER}/step_00003.parquet"
    assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes()
    runs.execute(run)
    table = read_parquet(run.rollouts.with_name("step_00003.parquet"))
    assert table["rollout_logprobs"].combine_chunks().flatten().to_pylist()[:1] == pytest.approx(batch.logprobs[:1])
