"""An adapter that the engine serves: what is handed over, that faults are found, and what SGLang cannot serve."""

from pathlib import Path

import pytest
import torch
from tests.everyday import everyday
from tests.trainer import picture_runs, runs
from tests.trainer.adapter_runs import Serving, served_run

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.errors import UserError
from dagrpo.engine.interface import AdapterForm, HeldWeights
from dagrpo.engine.sglang import ADAPTER_LAYERS
from dagrpo.engine.sglang.digests import SGLangWeights, digest_on_cpu
from dagrpo.trainer.config.lora import TrainedLora
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.weight_sync import GatheredAdapter, adapter_form
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.tables import read_parquet

Inputs = tuple[Path, Path]


class HalfLoaded(Serving):
    """Every second tensor never arrives."""

    def taken(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor if number % 2 else 0 * tensor for number, (name, tensor) in enumerate(tensors.items())}


class HalfLoadedLiar(HalfLoaded):
    """That says it holds all that it was handed."""

    def fill(self, weights: Tensors) -> None:
        super().fill(weights)
        self.told = {name: weights.read(name) for name in weights.specs}

    def digests(self) -> list[HeldWeights]:
        return [SGLangWeights(({name: digest_on_cpu(tensor) for name, tensor in (self.base | self.told).items()},))]


class Deaf(Serving):
    """Keeps the adapter that it began with."""

    def fill(self, weights: Tensors) -> None:
        if self.asked == ["load step_0"]:
            super().fill(weights)


class Silent(Serving):
    """Reports digests of its weights alone, as SGLang does by itself."""

    def digests(self) -> list[HeldWeights]:
        return [SGLangWeights(({name: digest_on_cpu(tensor) for name, tensor in self.base.items()},))]


class Drifting(Serving):
    """Adds to its weights what it should add to what they make."""

    def fill(self, weights: Tensors) -> None:
        if hasattr(self, "adapter"):
            name = next(name for name in self.base if name.endswith("up_proj.weight"))
            self.base[name] = self.base[name] + 1e-6
        super().fill(weights)


class OtherScale(Serving):
    """Counts the adapter twice."""

    def fill(self, weights: Tensors) -> None:
        self.scale = 4.0
        super().fill(weights)


@pytest.mark.parametrize("targets", everyday([None], [None, ["q_proj", "v_proj"], ["layers.1.mlp.up_proj"]]))
def test_the_engine_is_handed_the_adapter_alone_agrees_and_goes_on_to_the_bit(
    targets: list[str] | None, inputs: Inputs, tmp_path: Path
) -> None:
    whole, halved = (served_run(inputs, tmp_path / name, {"target_modules": targets}) for name in ("whole", "halved"))
    asked, _ = runs.execute(whole, Serving)
    assert asked == [part for step in range(4) for part in (f"load step_{step}", "generate")]
    metrics = read_parquet(whole.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-5
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0
    runs.execute(halved, Serving, stop=lambda step: step == 3)
    runs.execute(halved, Serving)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)


def test_layers_that_sglang_joins_with_adapted_ones_are_handed_over_with_zeros(inputs: Inputs) -> None:
    lora = TrainedLora(rank=4, alpha=8, target_modules=["layers.1.self_attn.q_proj", "down_proj"], serving="adapter")
    model = load_policy(inputs[0], single_process(), lora=lora).model
    assert adapter_form(model, lora, ADAPTER_LAYERS) == AdapterForm(
        rank=4, alpha=8, target_modules=("down_proj", "k_proj", "q_proj", "v_proj")
    )
    with GatheredAdapter(model, 4, torch.bfloat16, single_process(), ADAPTER_LAYERS).reading() as tensors:
        read = {name.removeprefix("base_model.model.model.layers."): tensors.read(name) for name in tensors.specs}
    layers = {"1.self_attn.q_proj", "1.self_attn.k_proj", "1.self_attn.v_proj", "0.mlp.down_proj", "1.mlp.down_proj"}
    assert read.keys() == {f"{layer}.lora_{which}.weight" for layer in layers for which in "AB"}
    assert {name for name, tensor in read.items() if tensor.any()} == {
        f"{layer}.lora_A.weight" for layer in layers - {"1.self_attn.k_proj", "1.self_attn.v_proj"}
    }, "B begins at 0"
    assert read["1.self_attn.k_proj.lora_B.weight"].shape == (4, 4)  # one key-value head of 4, by the rank
    assert {tensor.dtype for tensor in read.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (HalfLoaded, r"after step 0 server 0 holds other weights than were synced: \d+ of \d+ .* such as base_model"),
        (HalfLoadedLiar, r"before step [234]: of \d+ probed tokens .* Look at .*refused/probe_step"),
        (Deaf, r"after step 1 server 0 holds other weights than were synced: \d+ of 28 tensors"),
        (Silent, r"server 0 reports no digests for 28 adapter tensors, .* packages/dagrpo_sglang_adapters"),
        (Drifting, r"after step 1 the base weights in server 0 have changed since it was opened"),
        (OtherScale, r"before step [234]: of \d+ probed tokens .* Look at .*refused/probe_step"),
    ],
)
def test_an_engine_that_serves_something_else_ends_the_run_with_its_sentence(
    engine: type[Serving], sentence: str, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        runs.execute(served_run(inputs, tmp_path), engine)


def test_the_adapter_of_a_model_that_takes_pictures_is_refused(tmp_path: Path) -> None:
    initial, _ = picture_runs.make_inputs(tmp_path, "qwen2_5_vl")
    lora = TrainedLora(rank=4, serving="adapter")
    model = load_policy(initial, single_process(), "frozen", lora).model
    with pytest.raises(UserError, match=r"changes model\.language_model\.layers\..* which the engine is not known"):
        adapter_form(model, lora, ADAPTER_LAYERS)


def test_the_adapter_of_a_mixture_of_experts_is_refused(inputs: Inputs) -> None:
    lora = TrainedLora(rank=4, serving="adapter")
    model = load_policy(inputs[0], single_process(), lora=lora).model
    model.config.num_local_experts = 4
    with pytest.raises(UserError, match=r"is a mixture of experts, whose adapters .* set training\.lora\.serving"):
        adapter_form(model, lora, ADAPTER_LAYERS)


@pytest.fixture(scope="module")
def alone(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    run = served_run(inputs, tmp_path_factory.mktemp("alone"))
    runs.execute(run, Serving)
    return run


@pytest.fixture(scope="module")
def together(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """The same run by two processes, whose engine is opened twice: at the start, and again with an adapter that has learned."""
    run = served_run(inputs, tmp_path_factory.mktemp("together"))
    assert _asked(inputs, run, steps=2) == ["load step_0", "generate", "load step_1", "generate"]
    assert _asked(inputs, run, steps=4) == ["load step_2", "generate", "load step_3", "generate"]
    return run


def _asked(inputs: Inputs, run: TrainingRun, steps: int) -> list[str]:
    """Of the engine, by two processes that train to so many steps."""
    asked: list[str] = runs.launch(2, _train, inputs, run.policy.parent, steps)[0]
    return asked


def _train(world: World, inputs: Inputs, out: Path, steps: int) -> list[str]:
    return runs.execute(served_run(inputs, out, steps=steps), Serving, world)[0]


@pytest.mark.nightly
def test_the_engine_samples_from_the_policy_that_two_processes_train(together: TrainingRun) -> None:
    metrics = read_parquet(together.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-5
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0


@pytest.mark.nightly
def test_the_rollouts_and_the_trained_policy_are_those_of_one_process(
    alone: TrainingRun, together: TrainingRun
) -> None:
    one, two = (read_parquet(run.metrics)["reward/mean"].to_pylist() for run in (alone, together))
    assert one == pytest.approx(two)
    differences = compare(alone.policy, together.policy).differences
    assert all(each.largest is not None and each.largest < 1e-3 for each in differences)
