"""Whole runs with an engine, an optimizer or a record that is wrong in one way: each ends in its sentence."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import runs

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.core.types import Completion, SamplingRequest
from dagrpo.engine.interface import HeldWeights
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.trainer import setup
from dagrpo.trainer.checks.logprob_agreement import PROBED_OUTSIDE
from dagrpo.trainer.checks.weight_sync import COMPARED
from dagrpo.trainer.model.fsdp import load_trained_policy
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.update import policy_update
from dagrpo.trainer.update.stats import SKIPPED
from dagrpo.utils.tables import read_parquet

Inputs = tuple[Path, Path]


def _run(inputs: Inputs, folder: Path, steps: int = 4, **gates: Any) -> TrainingRun:
    return runs.changed(runs.training_run(inputs, folder / "state", folder, steps=steps), training={"gates": gates})


class HalfLoaded(runs.ScriptedEngine):
    """Every second tensor never arrives: it is as it was when the engine began, all zeros."""

    def fill(self, weights: Tensors) -> None:
        with torch.no_grad():
            for number, (name, tensor) in enumerate(self._model.state_dict().items()):
                tensor.copy_(weights.read(name) if number % 2 else torch.zeros(()))


class HalfLoadedLiar(HalfLoaded):
    """That says it holds all that it was handed."""

    def fill(self, weights: Tensors) -> None:
        super().fill(weights)
        self._said = {name: digest_on_cpu(weights.read(name)) for name in weights.specs}

    def digests(self) -> list[HeldWeights]:
        return [SGLangWeights((self._said,))]


class Hot(runs.ScriptedEngine):
    """At twice the temperature that it was asked for."""

    def _completion(self, request: SamplingRequest) -> Completion:
        return super()._completion(replace(request, temperature=2 * request.temperature))


class Shifted(runs.ScriptedEngine):
    """Each logprob at the token after its own."""

    def _completion(self, request: SamplingRequest) -> Completion:
        completion = super()._completion(request)
        return replace(completion, logprobs=(-5.0, *completion.logprobs[:-1]))


class OneSeed(runs.ScriptedEngine):
    """Every sample of a prompt with the prompt's own seed."""

    def _completion(self, request: SamplingRequest) -> Completion:
        return super()._completion(replace(request, seed=sum(request.input_ids)))


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (HalfLoaded, r"after step 0 server 0 holds other weights than were synced: \d+ of \d+ tensors"),
        (HalfLoadedLiar, r"before step 1: of \d+ probed tokens .* Look at .*refused/probe_step_00001\.parquet"),
        (Hot, r"before step 1: of \d+ probed tokens .* another temperature .* Look at"),
        (Shifted, r"before step 1: of \d+ probed tokens .* Look at"),
        (OneSeed, r"step 1: all 4 samples at problem \d+ of task arithmetic are the same"),
    ],
)
def test_an_engine_that_is_wrong_in_silence_ends_the_run_with_its_sentence(
    engine: type[runs.ScriptedEngine], sentence: str, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        runs.execute(_run(inputs, tmp_path), engine)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))
    tables = [*tmp_path.glob("state/refused/probe_*.parquet")]
    assert len(tables) == ("Look at" in str(caught.value) and "probed" in str(caught.value))
    for table in map(read_parquet, tables):
        assert any(table["outside"].to_pylist())
        assert {"prompt_ids", "token_id", "engine_logprob", "trainer_logprob"} <= {*table.column_names}


@pytest.mark.parametrize("engine", [Hot, HalfLoadedLiar])
def test_without_a_probe_the_rollouts_themselves_show_it(
    engine: type[runs.ScriptedEngine], inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"step 1: the engine's logprobs are .* Every token is in "):
        runs.execute(_run(inputs, tmp_path, probe_prompts=0), engine)
    assert read_parquet(tmp_path / "state/refused/rollouts_step_00001.parquet").num_rows


def test_weights_that_do_not_change_are_counted_over_an_interruption(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step has a gradient, and none is applied. The first execution ends in step 2, with the state of step 1."""
    monkeypatch.setattr(
        policy_update, "take_step", lambda optimizer, learning_rate: optimizer.zero_grad(set_to_none=True)
    )
    run = runs.training_run(inputs, tmp_path / "state", tmp_path, steps=6, save_every=1)
    runs.execute(run, stop=lambda step: step == 2)
    with pytest.raises(UserError, match="after step 3: in 3 weight syncs in a row not a bit"):
        runs.execute(run)


def test_a_healthy_run_passes_every_gate_at_its_strictest(inputs: Inputs, tmp_path: Path) -> None:
    strict: dict[str, Any] = {
        "unchanged_weights": 1,
        "outside_share": 0.0,
        "largest_difference": 1e-4,
        "skipped_steps": 0,
    }
    run = _run(inputs, tmp_path, **strict)
    runs.execute(run, stop=lambda step: step == 3)
    _, reported = runs.execute(run)
    assert [metrics["gate/probe_outside_fraction"] for _, metrics in reported] == [0.0] * 4
    assert all(metrics["gate/digest_tensors"] > 20 for _, metrics in reported)
    assert read_parquet(run.metrics)["gate/rollout_outside_fraction"].to_pylist() == [0.0] * 4
    assert read_parquet(run.metrics)[SKIPPED].to_pylist() == [0.0] * 4
    assert not (run.state / "refused").exists()


@pytest.mark.nightly
def test_a_comparison_every_third_weight_sync_begins_with_the_first_of_each_execution(
    inputs: Inputs, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path, steps=5, every=3)
    for stop, compared in ((5, [1, 4]), (0, [1, 4, 5])):  # the second time from the state of step 4
        _, reported = runs.execute(run, stop=partial(int.__eq__, stop))
        assert [step for step, metrics in reported if PROBED_OUTSIDE in metrics and COMPARED in metrics] == compared


def _break(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Make one number of the gradient of some of the steps, from 1, one that is not finite."""

    def broken(*arguments: Any, **options: Any) -> Policy:
        policy, taken = load_trained_policy(*arguments, **options), 0

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal taken
            taken += 1
            if taken in steps:
                gradient = gradient.clone()
                gradient[-1] = math.nan
            return gradient

        policy.model.model.norm.weight.register_hook(hook)
        return policy

    monkeypatch.setattr(setup, "load_trained_policy", broken)


def test_a_step_whose_gradient_is_not_finite_is_skipped_and_the_same_after_an_interruption(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, {2})
    whole, halved = _run(inputs, tmp_path / "whole"), _run(inputs, tmp_path / "halved")
    runs.execute(whole)
    metrics = read_parquet(whole.metrics)
    assert metrics[SKIPPED].to_pylist() == [0.0, 1.0, 0.0, 0.0]
    assert metrics["policy/grad_norm"].to_pylist()[1] == 0.0
    runs.execute(halved, stop=lambda step: step == 3)  # the state is that of the skipped step
    _break(monkeypatch, set())
    runs.execute(halved)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)


def test_a_run_that_learns_nothing_ends_where_it_is_told_to(inputs: Inputs, tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, steps_in_a_row=2, missing_answers=0.5, learns_nothing="refuse")
    with pytest.raises(UserError, match=r"step 2: for 2 steps \d+% of the completions have no answer to read"):
        runs.execute(run)
