"""The trainer on a GPU: the same bits when an update is repeated, one process or several, and other trainers."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.gpu.conftest import GPUS, ONE, TWO
from tests.trainer import foreign_runs, runs, updates
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.attention.varlen import varlen_attn
from transformers import Qwen2Config, Qwen2ForCausalLM

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.manifest import verify
from dagrpo.checkpoints.source import open_tensors
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.trainer.batches.batch import TokenSequences
from dagrpo.trainer.config.runtime import Layout
from dagrpo.trainer.model.fsdp import _shard_policy, load_policy
from dagrpo.trainer.model.optimizer import adamw, apply_gradients
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.model.prepare import prepare_layout
from dagrpo.utils.determinism import compute_deterministically
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.manifest import MANIFEST
from dagrpo.utils.tables import read_parquet


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh model of next to no size, in the trainer's layout."""
    folder = tmp_path_factory.mktemp("small")
    shape = Fresh(hidden_size=32, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=128)
    make_fresh(folder / "model", shape, torch.float32)
    convert(folder / "model", folder / "initial", Checkpoint())
    return folder / "initial"


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu()


def _update(policy: Policy) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    """Return logprobs, the gradient's norm, and the updated weights."""
    sequences = TokenSequences.of([[5, 6, 7, 8, 9], [9, 8, 7]], [[False, False, True, True, True], [False, True, True]])
    logprobs = token_logprobs(policy, sequences.padded(range(2), 0, single_process().device), 1.0).logprobs
    (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
    norm = apply_gradients(adamw(policy.parameters(), 0.01), 1e-3, 1.0)
    return logprobs.detach(), norm, {name: _whole(each) for name, each in policy.named_parameters()}


def _update_sharded_alone(world: World, model: Path, rendezvous: Path) -> dict[str, Any]:
    """Return how far the update of a policy that FSDP has sharded over a single process is from one without FSDP.

    Deterministic: AdamW's first step turns the rounding of a gradient near 0 into a whole step.
    """
    store = dist.FileStore(str(rendezvous), 1)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    whole, sharded = load_policy(model, world), load_policy(model, world)
    _shard_policy(sharded, init_device_mesh(world.device.type, (1,)), world)
    (logprobs, norm, weights), (own_logprobs, own_norm, own_weights) = _update(whole), _update(sharded)
    found = {
        "backend": dist.get_backend_config(),
        "device": world.device.type,
        "logprobs": float((logprobs - own_logprobs).abs().max()),
        "norm": abs(norm - own_norm) / norm,
        "weights": max(float((weights[name] - own_weights[name]).abs().max()) for name in weights),
        "moved": norm > 0,
        "sharded": any(isinstance(each, DTensor) for each in sharded.parameters()),
    }
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        pytest.param("cpu", "gloo", marks=[pytest.mark.nightly, pytest.mark.skipif(GPUS > 0, reason="it has a GPU")]),
        pytest.param("cuda", "nccl", marks=[pytest.mark.gpu, ONE]),
    ],
)
def test_a_world_of_one_is_one_process(device: str, backend: str, small: Path, tmp_path: Path) -> None:
    (found,) = runs.launch(1, _update_sharded_alone, small, tmp_path / "rendezvous")
    assert found["device"] == device
    assert backend in found["backend"]
    assert (found["moved"], found["sharded"]) == (True, True)
    assert max(found["logprobs"], found["norm"], found["weights"]) < 1e-5


@TWO
@pytest.mark.gpu
def test_two_gpus_train_the_policy_of_one(small: Path, tmp_path: Path) -> None:
    updates.run(single_process(), small, tmp_path / "one")
    runs.launch(2, updates.run, small, tmp_path / "two")
    differences = compare(tmp_path / "one/policy", tmp_path / "two/policy").differences
    assert all(difference.largest is not None and difference.largest < 1e-3 for difference in differences)


@ONE
@pytest.mark.gpu
def test_updates_that_are_repeated_on_a_gpu_leave_the_same_bytes(small: Path, tmp_path: Path) -> None:
    compute_deterministically(True)
    try:
        for name in ("first", "second"):
            updates.run(single_process(), small, tmp_path / name)
    finally:
        torch.use_deterministic_algorithms(False)
    manifests = [(tmp_path / name / "policy" / MANIFEST).read_bytes() for name in ("first", "second")]
    assert manifests[0] == manifests[1]


def _of_long_and_short(window: int | None, dtype: torch.dtype, head_dim: int = 32) -> tuple[Policy, TokenSequences]:
    """A policy on the GPU whose heads are grouped, and sequences of 1 to 300 tokens after their prompts."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        head_dim=head_dim, use_sliding_window=window is not None, sliding_window=window, max_window_layers=1,
    )  # fmt: skip
    lengths = [1, 2, 17, 17, 64, 130, 300]
    prompts = [[5, 6, 7], [7, 6, 5]]
    ids = [prompts[number % 2] + torch.randint(1, 64, (length,)).tolist() for number, length in enumerate(lengths)]
    sequences = TokenSequences.of(ids, [[False] * 3 + [True] * length for length in lengths])
    return Policy(Qwen2ForCausalLM(config).eval().cuda(), dtype=dtype), sequences


def _computed(
    policy: Policy, sequences: TokenSequences, layout: Layout, *, share_prompts: bool = False
) -> list[torch.Tensor]:
    """Logprobs, and the gradient of their weighted sum as one vector."""
    policy.zero_grad()
    batch = sequences.lay_out(range(len(sequences)), 0, torch.device("cuda"), layout, share_prompts=share_prompts)
    logprobs = token_logprobs(policy, batch, 1.0).logprobs
    (logprobs * torch.linspace(-1, 1, len(logprobs), device="cuda")).mean().backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None]
    return [logprobs.detach(), torch.cat(gradients)]


@ONE
@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share_prompts", [False, True])
def test_packed_rows_on_a_gpu_give_the_logprobs_and_gradient_of_padded_ones(
    window: int | None, dtype: torch.dtype, share_prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel for sequences of any length, to the rounding of 16 bits, and to the bit when it is repeated."""
    calls: list[int] = []

    def counted(*inputs: Any, **options: Any) -> Any:
        calls.append(1)
        return varlen_attn(*inputs, **options)

    monkeypatch.setattr("dagrpo.trainer.model.attention.varlen_attn", counted)
    compute_deterministically(True)
    try:
        policy, sequences = _of_long_and_short(window, dtype)
        padded = _computed(policy, sequences, "padded")
        assert prepare_layout(policy, None, single_process()) == "packed"
        packed, again = (_computed(policy, sequences, "packed", share_prompts=share_prompts) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(calls) >= 2 * 3
    assert float((packed[0] - padded[0]).abs().mean()) < 0.01
    assert float(torch.nn.functional.cosine_similarity(packed[1], padded[1], dim=0)) > 0.999
    assert all(torch.equal(one, other) for one, other in zip(packed, again, strict=True))


@ONE
@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 5])
def test_packed_rows_in_float32_on_a_gpu_give_the_logprobs_and_gradient_of_padded_ones(window: int | None) -> None:
    """Sequence by sequence; nobody asks for it there, so the default is padded."""
    policy, sequences = _of_long_and_short(window, torch.float32)
    padded = _computed(policy, sequences, "padded")
    assert prepare_layout(policy, None, single_process()) == "padded"
    assert prepare_layout(policy, "packed", single_process()) == "packed"
    for one, other in zip(_computed(policy, sequences, "packed"), padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@ONE
@pytest.mark.gpu
def test_heads_that_do_not_fit_the_kernel_are_padded_by_default() -> None:
    policy, sequences = _of_long_and_short(None, torch.bfloat16, head_dim=12)
    padded = _computed(policy, sequences, "padded")
    assert prepare_layout(policy, None, single_process()) == "padded"
    assert prepare_layout(policy, "packed", single_process()) == "packed"
    packed = _computed(policy, sequences, "packed")
    assert float((packed[0] - padded[0]).abs().mean()) < 0.01


SETTINGS: dict[str, dict[str, Any]] = {
    "verl": {  # without flash-attn, which its lock does not have
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
    },
    "megatron_lm": {"cuda-graph-impl": "none"},
}


def _train_two_steps(
    trainer: str, folder: Path, python: str | None, source: str | None, initial: Path | None = None
) -> None:
    """Train from `initial`, or from the tiny model, and require what the stage is to leave."""
    changes = {
        "rollout": {"max_new_tokens": 64},
        "training": {"steps": 2, "learning_rate": 1e-3, "backend": {"name": trainer, "settings": SETTINGS[trainer]}},
        "runtime": {"backend": {"python": python, "source": source}, "training": {"processes": 1}},
    }
    run = foreign_runs.run_in(folder, changes)
    run = run if initial is None else replace(run, initial=initial)
    foreign_runs.train(run)
    table = read_parquet(run.metrics).to_pydict()
    assert table["step"] == [1, 2]
    assert all(map(math.isfinite, [*table["reward/mean"], *table["policy/grad_norm"]]))
    verify(run.policy)
    assert open_tensors(run.policy).specs == open_tensors(run.initial).specs


@pytest.mark.gpu
@ONE
@pytest.mark.parametrize("trainer", SETTINGS)
def test_two_steps_are_followed_and_leave_a_policy_of_the_initial_tensors(
    trainer: str, initial: Path, tmp_path: Path
) -> None:
    name = f"DAGRPO_{trainer.upper()}"
    python, source = os.environ.get(f"{name}_PYTHON"), os.environ.get(name)
    if python is None or (trainer == "megatron_lm" and source is None):
        pytest.skip(f"{name}_PYTHON names no Python of an environment for {trainer}, or {name} no checkout")
    _train_two_steps(trainer, tmp_path, python, source, initial)


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", SETTINGS)
def test_the_check_itself_passes_with_a_stand_in(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", foreign_runs.path_with(trainer))
    _train_two_steps(trainer, tmp_path, None, str(foreign_runs.STAND_INS[trainer]))
