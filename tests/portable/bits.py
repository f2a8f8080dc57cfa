#!/usr/bin/env python3
"""Digests of what a tiny training computes on a CPU, under settings that limit the instruction set; one JSON line.

Run `python -m tests.portable.bits` in the project's folder and compare with records.jsonl, which has one line per kind of processor: a
setting under which all lines agree gives the same bytes on all of them.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dagrpo.utils.environment import kind_of_processor
from dagrpo.utils.portable import VARIABLES, multiply_portably

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = {
    "default": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx2_cbwr": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "avx2_cbwr_strict": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2,STRICT"},
    "avx2_compatible": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"},
    "portable": VARIABLES,
    "plain_compatible": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


def values(*shape: int, seed: int = 0) -> "Tensor":
    """Return numbers in -2 to 2 that follow from their places."""
    import torch

    count = 1
    for size in shape:
        count *= size
    numbers = (torch.arange(count, dtype=torch.int64) * 2654435761 + seed * 40503) % 65521
    return ((numbers.to(torch.float64) / 65521 - 0.5) * 4).to(torch.float32).reshape(shape)


def digest(*tensors: "Tensor") -> str:
    """Return the start of the sha256 of the bytes."""
    joined = b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)
    return hashlib.sha256(joined).hexdigest()[:12]


def digests() -> dict[str, str]:
    """Return a digest per kind of computation, on one thread."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    multiply_portably()

    found = {}
    for m, k, n in ((256, 128, 512), (33, 128, 96), (512, 64, 64), (1, 576, 1536), (640, 576, 1536)):
        found[f"matmul {m}x{k}x{n}"] = digest(values(m, k) @ values(k, n, seed=1))
    found["bmm"] = digest(torch.bmm(values(8, 20, 32), values(8, 32, 20, seed=1)))
    x = values(500, 333)
    for name in ("exp", "log1p", "sigmoid", "tanh", "rsqrt", "sin"):
        found[name] = digest(getattr(torch, name)(x.abs() if name in ("log1p", "rsqrt") else x))
    for name, result in {
        "softmax": torch.softmax(x, -1),
        "log_softmax": torch.log_softmax(x, -1),
        "logsumexp": torch.logsumexp(x, -1),
        "sum": x.sum(-1),
        "mean": x.mean(0),
        "cumsum": x.cumsum(-1),
        "silu": functional.silu(x),
        "norm": torch.linalg.vector_norm(x),
    }.items():
        found[name] = digest(result)
    q = values(2, 4, 24, 32)
    found["attention"] = digest(
        functional.scaled_dot_product_attention(
            q, values(2, 4, 24, 32, seed=1), values(2, 4, 24, 32, seed=2), is_causal=True
        )
    )
    found |= _updates()
    narrow = values(40, 64).clone().requires_grad_()
    for name, result in {
        "rms_norm": functional.rms_norm(narrow, (64,)).square().sum(),
        "silu": functional.silu(narrow).square().sum(),
        "cross_entropy": functional.cross_entropy(narrow, torch.arange(40)),
    }.items():
        found[f"{name} backward"] = digest(*torch.autograd.grad(result, narrow))
    weight, state = values(64, 128).clone(), values(64, 128, seed=1)
    found["matmul 40x128x64 transposed"] = digest(values(40, 128) @ weight.T)
    found["matmul 64x40x128 transposed"] = digest(values(40, 64).T @ values(40, 128, seed=1))
    found["sqrt, divide"] = digest(weight / (state.abs().sqrt() + 1e-8))
    return found


def _updates() -> dict[str, str]:
    """Return digests of the gradients and of three updates of a small network."""
    import torch
    from torch.nn import functional

    found = {}
    for fused in (False, True):  # fused AdamW takes its square root from the processor, not from MKL
        weights = [values(64, 128, seed=i).clone().requires_grad_() for i in range(3)]
        optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=fused)
        for step in range(3):
            optimizer.zero_grad()
            hidden = values(40, 128, seed=step)
            for weight in weights:
                hidden = functional.silu(functional.rms_norm(hidden @ weight.T, (64,))) @ weight
            loss = functional.cross_entropy(hidden, torch.arange(40))
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = gradient
            if step == 0:
                found["gradients of update 1"] = digest(*(weight.grad for weight in weights if weight.grad is not None))
            optimizer.step()
        found["three updates, fused" if fused else "three updates"] = digest(*weights)
    return found


def steps(folder: Path) -> str:
    """Return a digest of the weights after three steps of a tiny GRPO training with scripted completions."""
    from tests.trainer import runs

    from dagrpo.checkpoints.source import open_tensors

    run = runs.training_run(runs.make_inputs(folder), folder / "state", folder, steps=3)
    runs.execute(run)
    weights = open_tensors(run.policy)
    joined = b"".join(weights.read(name).numpy().tobytes() for name in sorted(weights.specs))
    return hashlib.sha256(joined).hexdigest()[:12]


def main() -> None:
    """Print one line: processor, torch, and for each setting, or those named, one digest of all and the single ones."""
    if sys.argv[1:] == ["one"]:
        with TemporaryDirectory() as folder:
            print(json.dumps(digests() | {"three steps": steps(Path(folder))}))
        return
    found = {}
    for name, variables in SETTINGS.items():
        if name not in (sys.argv[1:] or SETTINGS):
            continue
        run = subprocess.run(
            [sys.executable, "-m", "tests.portable.bits", "one"],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        single = json.loads(run.stdout)
        found[name] = {"all": hashlib.sha256(json.dumps(single, sort_keys=True).encode()).hexdigest()[:12], **single}
    import torch

    print(json.dumps({"processor": kind_of_processor(), "torch": torch.__version__, "settings": found}))


if __name__ == "__main__":
    main()
