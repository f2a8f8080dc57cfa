"""A LoRA adapter in the policy: what it computes, what is trained, what is handed over, kept and written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.trainer import adapter_runs, picture_runs, runs, updates
from transformers import AutoModelForCausalLM, PreTrainedModel

from dagrpo.checkpoints import lora as adapters
from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import export, write_as
from dagrpo.checkpoints.formats.dcp import DcpTensors
from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.lora_layers import LowRank, low_rank_updates
from dagrpo.checkpoints.modules import own_state
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo.core.errors import UserError
from dagrpo.trainer import weight_sync
from dagrpo.trainer.config.lora import Lora
from dagrpo.trainer.model.fsdp import load_policy, load_reference
from dagrpo.trainer.model.optimizer import adamw
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.state import states, tensors
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet
from dagrpo_replay.recomputation import replay
from dagrpo_replay.recorded_run import unfinished

Inputs = tuple[Path, Path]
TOKENS = torch.tensor([[1, 5, 7, 3, 2]])
PADDED = updates.rollouts(0).lay_out(range(3), 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def whole(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps without an interruption."""
    run = _run(inputs, tmp_path_factory.mktemp("whole"))
    runs.execute(run)
    return run


def _run(inputs: Inputs, out: Path, steps: int = 4, **lora: Any) -> TrainingRun:
    plain = runs.training_run(inputs, out / "state", out, steps)
    return adapter_runs.with_adapter(plain, adapter_runs.LORA | lora)


def _policy(initial: Path, seed: int = 1, **lora: Any) -> Policy:
    return load_policy(initial, single_process(), lora=Lora.model_validate(adapter_runs.LORA | lora), seed=seed)


def _moved(policy: Policy) -> dict[str, LowRank]:
    """The adapter, after B was set to something."""
    updates_of_weights = low_rank_updates(policy.model)
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for update in updates_of_weights.values():
            update.up.copy_(torch.randn(update.up.shape, generator=drawn))
    return updates_of_weights


def test_a_merged_weight_is_w_plus_alpha_over_rank_times_b_a() -> None:
    """By hand: 1 + 8 / 4 * (1 * 3 + 2 * 5) = 27, and so on."""
    update = LowRank(up=torch.tensor([[1.0, 2.0], [0.0, 1.0]]), down=torch.tensor([[3.0], [5.0]]), scale=8 / 4)
    weight = torch.tensor([[1.0], [-4.0]])
    assert update.merged(weight).tolist() == [[27.0], [6.0]]
    assert weight.tolist() == [[1.0], [-4.0]]


def test_what_the_policy_computes_is_what_the_merged_weights_compute_as_often_as_they_are_made(inputs: Inputs) -> None:
    policy = _policy(inputs[0])
    before = {name: tensor.clone() for name, tensor in own_state(policy.model).items()}
    _moved(policy)
    weights = GatheredWeights(policy.model, torch.float32, single_process())
    merged = []
    for _ in range(3):
        with weights.reading() as read:
            merged.append({name: read.read(name).clone() for name in read.specs})
    assert all(torch.equal(one[name], merged[0][name]) for one in merged for name in merged[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in own_state(policy.model).items())
    plain = load_policy(inputs[0], single_process()).model
    plain.load_state_dict(merged[0], strict=False)
    with torch.no_grad():
        torch.testing.assert_close(policy.model(TOKENS).logits, plain(TOKENS).logits, atol=1e-4, rtol=1e-4)
        before_training = load_policy(inputs[0], single_process()).model(TOKENS).logits
        assert not torch.allclose(policy.model(TOKENS).logits, before_training, atol=0.1)


def test_the_gradient_and_the_optimizer_have_the_adapter_alone(inputs: Inputs) -> None:
    policy = _policy(inputs[0])
    optimizer = adamw(policy.parameters(), 0.0)
    token_logprobs(policy, PADDED, 1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    with_gradient = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert with_gradient == {name for name, _ in policy.named_parameters() if ".lora_" in name}
    optimizer.step()
    assert len(optimizer.state) == len(with_gradient) == 2 * 2 * 7  # A and B of seven layers in each of two blocks


def test_an_adapter_begins_with_what_its_seed_says_and_changes_nothing(inputs: Inputs) -> None:
    first, again, other = (low_rank_updates(_policy(inputs[0], seed).model) for seed in (1, 1, 2))
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(first[name].down, again[name].down)
    assert not torch.equal(first[name].down, other[name].down)
    assert first[name].down.abs().max() <= 32**-0.5  # 32 inputs
    assert first[name].down.std() > 0.05
    with torch.no_grad():
        expected = load_policy(inputs[0], single_process()).model(TOKENS).logits
        assert torch.equal(_policy(inputs[0]).model(TOKENS).logits, expected)


def test_the_reference_is_the_policy_without_its_adapter_whose_gradient_goes_on(inputs: Inputs) -> None:
    policy, plain = _policy(inputs[0]), load_policy(inputs[0], single_process())
    _moved(policy)
    reference = load_reference(inputs[0], single_process(), policy)
    ours = token_logprobs(policy, PADDED, 1.0).logprobs
    with torch.no_grad():
        theirs = token_logprobs(reference, PADDED, 1.0).logprobs
        assert torch.equal(theirs, token_logprobs(plain, PADDED, 1.0).logprobs)
    assert not torch.allclose(ours, theirs, atol=0.1)
    ours.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in policy.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [(["q_proj"], 2), (["layers.1.self_attn.q_proj", "down_proj"], 3), (["model.layers.0.mlp.up_proj"], 1), (None, 14)],
)
def test_targets_are_names_of_layers_or_their_ends(targets: list[str] | None, expected: int, inputs: Inputs) -> None:
    assert len(low_rank_updates(_policy(inputs[0], target_modules=targets).model)) == expected


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"target_modules": ["q_prj"]}, "names q_prj, which is no linear layer of this qwen2.*the nearest is q_proj"),
        ({"target_modules": ["norm"]}, "names norm, .*it has down_proj, gate_proj"),
        ({"vision": True}, r"lora\.vision is true, but .* qwen2 model, which has no vision tower"),
    ],
)
def test_an_adapter_of_what_the_model_has_not_is_refused(lora: dict[str, Any], words: str, inputs: Inputs) -> None:
    with pytest.raises(UserError, match=words):
        _policy(inputs[0], **lora)


def test_the_policy_learns_and_the_engine_agrees_with_it(whole: TrainingRun) -> None:
    metrics = read_parquet(whole.metrics)
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0.01
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-4
    assert metrics["policy/kl"].to_pylist()[-1] > 0
    moved = {each.name for each in compare(whole.initial, whole.policy).differences if each.largest}
    assert len(moved) == 14
    assert not any("embed" in name or "norm" in name for name in moved)


@pytest.mark.nightly
def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not(
    inputs: Inputs, whole: TrainingRun, tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path)
    runs.execute(run, stop=lambda step: step == 3)  # the state is that of step 2
    asked, _ = runs.execute(run)
    assert asked == ["load step_2", "generate", "load step_3", "generate"]
    assert runs.bytes_of(run) == runs.bytes_of(whole)


def test_a_replay_finds_every_bit(whole: TrainingRun, tmp_path: Path) -> None:
    recorded = replace(unfinished(whole.policy.parent, whole.state), state=tmp_path / "none")
    assert [check.difference for check in replay(recorded, [3], single_process())] == [None] * 3


def test_a_state_has_the_adapter_and_names_the_weights_beside_it(whole: TrainingRun, tmp_path: Path) -> None:
    saved = states.at(whole.state, 4)
    names = {name.partition("/")[2] for name in DcpTensors(saved.folder).specs}
    assert len(names) == 2 * 2 * 7
    assert all(".lora_" in name for name in names)
    policy = _policy(whole.initial)
    optimizer = adamw(policy.parameters(), 0.0)
    tensors.load(saved, policy.model, optimizer, saved.base)
    assert all(update.up.abs().max() > 0 for update in low_rank_updates(policy.model).values())
    with pytest.raises(UserError, match="beside the weights of another checkpoint"):
        tensors.load(saved, policy.model, optimizer, "0" * 64)
    with pytest.raises(UserError, match="holds another model's weights"):
        plain = load_policy(whole.initial, single_process())
        tensors.load(saved, plain.model, adamw(plain.parameters(), 0.0), saved.base)


class Forgetful(GatheredWeights):
    """A weight sync of the weights that the run began with, whatever the adapter is by now."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._updates = {}


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ({}, r"before step [234]: of .* probed tokens .* have logprobs of engine and trainer"),
        (
            {"outside_share": 1.0, "largest_difference": 1e3, "unchanged_weights": 2},
            "after step 2: in 2 weight syncs in a row not a bit of the engine's weights",
        ),
    ],
    ids=["by the probe", "by the digests alone"],
)
def test_a_weight_sync_that_forgets_the_adapter_is_refused(
    gates: dict[str, float], words: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sync, "GatheredWeights", Forgetful)
    with pytest.raises(UserError, match=words):
        runs.execute(runs.changed(_run(inputs, tmp_path), training={"gates": gates}))


@pytest.fixture(scope="module")
def exported(whole: TrainingRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "exported"
    export(whole.policy, folder, Checkpoint())
    return folder


def _model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_the_exported_adapter_on_its_base_is_the_exported_policy(
    inputs: Inputs, exported: Path, tmp_path: Path
) -> None:
    base = inputs[0].with_name("model")
    adapted = peft.PeftModel.from_pretrained(_model(base), exported / "adapter")
    with torch.no_grad():
        ours, theirs = _model(exported)(TOKENS).logits, adapted(TOKENS).logits
        assert not torch.allclose(_model(base)(TOKENS).logits, theirs, atol=1e-2)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert not [*exported.rglob("*.bin"), *exported.rglob("*.pt")]


def test_the_exported_adapter_merged_by_convert_is_the_policy_to_the_bit_and_is_merged_once(
    inputs: Inputs, exported: Path, tmp_path: Path
) -> None:
    base = inputs[0].with_name("model")
    write_as("huggingface", adapters.merged(open_checkpoint(base), exported / "adapter"), tmp_path / "merged", 1 << 30)
    ours, theirs = open_tensors(exported), open_tensors(tmp_path / "merged")
    assert ours.specs.keys() == theirs.specs.keys()
    assert all(torch.equal(ours.read(name), theirs.read(name)) for name in ours.specs)
    with pytest.raises(UserError, match=r"adapter was trained on other weights than those in .*exported"):
        adapters.merged(open_checkpoint(exported), exported / "adapter")


def test_an_adapter_of_the_start_does_not_go_along_with_other_weights(whole: TrainingRun, tmp_path: Path) -> None:
    """As where sft trains an adapter, and train all weights."""
    (split,) = whole.train_splits.values()
    plain = runs.training_run((whole.policy, split), tmp_path / "state", tmp_path, 1)
    runs.execute(plain)
    assert not (plain.policy / "adapter").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "kind"), [("qwen2_5_vl", "frozen"), ("qwen3_vl", "trained")])
def test_an_adapter_of_a_vision_language_model_is_in_the_tower_where_that_is_asked_for(
    family: str, kind: str, tmp_path: Path
) -> None:
    inputs = picture_runs.make_inputs(tmp_path, family)
    plain = picture_runs.training_run(inputs, tmp_path, 2, "trained")
    lora = adapter_runs.LORA | {"vision": kind == "trained"}
    own = {"vision": kind, "vision_learning_rate": 0.3 if kind == "trained" else None, "lora": lora}
    run = runs.changed(plain, training=own)
    runs.execute(run, picture_runs.SeeingEngine)
    metrics = read_parquet(run.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 1e-4
    moved = {each.name for each in compare(run.initial, run.policy).differences if each.largest}
    assert any("visual" not in name for name in moved)
    assert any("visual" in name for name in moved) == (kind == "trained")
    base = tmp_path / "model"
    write_as(
        "huggingface", adapters.merged(open_checkpoint(base), run.policy / "adapter"), tmp_path / "merged", 1 << 30
    )
    ours, theirs = open_tensors(run.policy), open_tensors(tmp_path / "merged")
    assert all(torch.equal(ours.read(name), theirs.read(name)) for name in theirs.specs)


def test_a_tower_that_is_trained_outside_the_adapter_is_refused_when_the_model_is_known(tmp_path: Path) -> None:
    initial, _ = picture_runs.make_inputs(tmp_path, "qwen2_5_vl")
    with pytest.raises(UserError, match=r"vision to frozen, or .*lora\.vision to true"):
        _policy(initial)
