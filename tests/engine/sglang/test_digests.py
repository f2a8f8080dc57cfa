import json
import os
import subprocess
import sys

import pytest
import torch
from tests.engine import divided

from dagrpo.checkpoints.tensor_hash import tensor_hash
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.engine.sglang.digests import comparable, counterparts, differing, digest_on_cpu, digest_on_gpu

QKV = tuple(f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")


def test_on_a_cpu_a_digest_is_the_beginning_of_the_sha256_of_the_bytes() -> None:
    # printf '\x01\x02' | sha256sum
    assert digest_on_cpu(torch.tensor([1, 2], dtype=torch.uint8)) == "a12871fee210fb86"


def test_tensors_that_an_engine_joins_are_found_and_others_are_left_out() -> None:
    names = [*QKV, "model.norm.weight"]
    held = ["model.layers.0.self_attn.qkv_proj.weight", "model.norm.weight", "model.layers.0.mlp.experts.w13_weight"]
    assert counterparts(held, names) == {held[0]: QKV, held[1]: (held[1],)}


@pytest.mark.parametrize(("text", "tower"), [("", ""), ("language_model.", "model.")])
def test_the_tensors_of_a_vision_language_model_are_found_as_each_family_names_them(text: str, tower: str) -> None:
    """Those of Qwen2.5-VL, and those of Qwen3-VL."""
    names = {
        "model.layers.0.self_attn.qkv_proj.weight": tuple(
            f"model.{text}layers.0.self_attn.{part}_proj.weight" for part in "qkv"
        ),
        "model.norm.weight": (f"model.{text}norm.weight",),
        "visual.blocks.0.attn.qkv_proj.bias": (f"{tower}visual.blocks.0.attn.qkv.bias",),
        "visual.blocks.0.mlp.gate_up_proj.bias": tuple(
            f"{tower}visual.blocks.0.mlp.{part}_proj.bias" for part in ("gate", "up")
        ),
    }
    held = [*names, "model.layers.0.self_attn.rotary_emb.axis_map"]
    assert counterparts(held, [part for parts in names.values() for part in parts]) == names


@pytest.mark.parametrize(("inner", "compared"), [(64, 4), (48, 1)])
def test_the_mlp_of_a_vision_tower_that_sglang_fills_up_is_not_compared(inner: int, compared: int) -> None:
    shapes = {
        "up_proj.weight": (inner, 5),
        "up_proj.bias": (inner,),
        "down_proj.weight": (5, inner),
        "down_proj.bias": (5,),
    }
    weights = {f"visual.blocks.0.mlp.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    others = {"model.layers.0.mlp.up_proj.weight": torch.zeros(48, 5)}
    known = {name: (name,) for name in weights | others}
    assert len(comparable(known, StateTensors(weights | others))) == compared + 1


@pytest.mark.parametrize("digest", [digest_on_cpu, digest_on_gpu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_joined_tensors_and_embeddings_with_rows_of_zeros_are_recognised_and_one_changed_bit_is_not(
    digest: object, dtype: torch.dtype
) -> None:
    assert callable(digest)
    q, k, v = (torch.randn(rows, 5).to(dtype) for rows in (4, 3, 3))
    weights = StateTensors(dict(zip(QKV, (q, k, v), strict=True)))
    joined = torch.cat([q, k, v])

    def is_held(digest: str) -> bool:
        return not differing(["qkv"], [{"qkv": digest}], {"qkv": QKV}, weights)

    assert is_held(digest(joined))
    assert is_held(digest(torch.cat([joined, torch.zeros(54, 5, dtype=dtype)])))  # 10 rows: 54 more
    joined[7, 2] *= -1
    assert not is_held(digest(joined))


@pytest.mark.nightly
def test_what_sglangs_layers_hold_in_each_of_several_ranks_is_recognised_and_one_changed_bit_is_not() -> None:
    """Of 6 key-value heads each rank has 6, 3, 2 or 1, or two ranks have the same; 200 tokens are filled up to 256 or, for 3, to 384."""
    pytest.importorskip("sglang")
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, divided.__file__, "1", "2", "3", "6", "12"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    weights = divided.weights()
    for line in done.stdout.splitlines()[-5:]:
        held = json.loads(line)
        known = comparable(counterparts([*held[0]], [*weights]), StateTensors(weights), len(held))
        assert known.keys() == held[0].keys()
        assert differing([*known], held, known, StateTensors(weights)) == []
        for name, parts in known.items():
            changed = weights | {parts[-1]: weights[parts[-1]].clone()}
            changed[parts[-1]].view(torch.int32).view(-1)[-1] ^= 1
            assert differing([*known], held, known, StateTensors(changed)) == [name]


def test_of_several_ranks_only_what_is_known_to_be_divided_in_one_way_is_compared() -> None:
    names = [
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.sinks",
        "model.layers.0.mlp.dense.weight",
        "model.visual.blocks.0.attn.proj.weight",
    ]
    weights = StateTensors({name: torch.zeros(32, 32) for name in names})
    known = {name: (name,) for name in names}
    assert [*comparable(known, weights)] == names
    assert [*comparable(known, weights, 2)] == names[:2]


@pytest.mark.parametrize(
    ("tensor", "digest"),
    [
        (torch.arange(20_000, dtype=torch.float32), "2c83f6b96fb4c653"),
        (torch.arange(9_001, dtype=torch.bfloat16), "6c63ad84737f01f6"),
        (torch.zeros(0), "0000000000000000"),
    ],
)
def test_a_digest_as_on_a_gpu_has_the_value_that_earlier_versions_gave(tensor: torch.Tensor, digest: str) -> None:
    assert digest_on_gpu(tensor) == digest


def test_what_a_digest_is_mixed_from_is_computed_without_waiting_for_the_device() -> None:
    """A tensor of the device meta has no values, so that a wait for one raises."""
    total = tensor_hash(torch.empty(70_000, 300, dtype=torch.bfloat16, device="meta"))
    assert (total.device.type, total.shape) == ("meta", ())


_ORACLE = """
import sys, torch, triton
from sglang.kernels.ops.memory import gpu_tensor_hash as sglang
from dagrpo.engine.sglang.digests import digest_on_gpu

def theirs(tensor):
    # gpu_tensor_hash itself asks for a GPU; its kernels run in Triton's interpreter.
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, -len(data) % 4)).view(torch.uint32)
    partials = torch.empty(triton.cdiv(len(data), 8192), dtype=torch.uint64)
    seed = 0x243F6A88
    sglang.hash_tiles32_kernel_blocked[(len(partials),)](
        data, partials, len(data), seed1=seed, seed2=((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF,
        FM_C1=sglang.FMIX32_C1, FM_C2=sglang.FMIX32_C2, POS_A=sglang.POS_C1, POS_B=sglang.POS_C2,
        TILE=8192, BLOCK=256, USE_CG=False,
    )
    total = sum(partials.tolist()) & ((1 << 64) - 1)
    return f"{sglang._final_splitmix64(total):016x}"

torch.manual_seed(0)
for tensor in (torch.randn(3), torch.randn(70, 257), torch.randn(9001).bfloat16()):
    assert digest_on_gpu(tensor) == theirs(tensor), (digest_on_gpu(tensor), theirs(tensor))
"""


@pytest.mark.nightly
def test_on_a_gpu_a_digest_is_that_of_sglangs_own_kernel() -> None:
    pytest.importorskip("sglang")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", _ORACLE], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
