"""Portable arithmetic: the same bytes on every recorded kind of processor, and right products."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagrpo.utils.environment import kind_of_processor
from dagrpo.utils.portable import VARIABLES

HERE = Path(__file__).parent
# MKL's square root of vectors, which the fused update of portable runs does without.
DIFFER = {"all", "three updates", "sqrt, divide"}
PRODUCTS = """
import torch
from dagrpo.utils.portable import multiply_portably

multiply_portably()
torch.manual_seed(0)
for m, k, n in ((1, 3, 2), (40, 512, 33), (7, 513, 20), (33, 1300, 64), (0, 4, 5), (3, 0, 5)):
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
        a, b, x = torch.randn(k, m).mul(9).to(dtype).t(), torch.randn(k, n).mul(9).to(dtype), torch.ones(n, dtype=dtype)
        near = 1e-2 if dtype == torch.bfloat16 else 1e-5
        expected = a.double() @ b.double()
        torch.testing.assert_close((a @ b).double(), expected, rtol=near, atol=near * 1000)
        torch.testing.assert_close(torch.addmm(x, a, b).double(), expected + 1, rtol=near, atol=near * 1000)
        assert (a @ b).dtype == dtype
    weight = torch.randn(k, n, requires_grad=True)
    (torch.ones(m, k) @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.full((k, n), float(m)))
    parts = [a.float()[:, i : i + 512].contiguous() @ b.float()[i : i + 512] for i in range(0, k, 512)]
    assert not k or torch.equal(a.float() @ b.float(), sum(parts[1:], parts[0])), "longer sums are cut in a fixed order"
"""


def test_three_steps_of_training_have_the_recorded_bytes_on_this_kind_of_processor() -> None:
    """A kind that is not recorded yet breaks nothing: the reason to skip has its line for records.jsonl."""
    lines = [json.loads(line) for line in (HERE / "records.jsonl").read_text().splitlines()]
    records = {line["processor"]: line["settings"]["portable"] for line in lines if "portable" in line["settings"]}
    printed = _run("-m", "tests.portable.bits", "portable")
    line = json.loads(printed)
    expected, found = next(iter(records.values())), line["settings"]["portable"]
    differing = [name for name in expected if name not in DIFFER and found.get(name) != expected[name]]
    if line["processor"] not in records:
        agrees = f"differs in {', '.join(differing)}" if differing else "agrees"
        pytest.skip(f"{line['processor']} is not recorded, and {agrees}; its line for records.jsonl: {printed}")
    assert not differing
    assert line["processor"] == kind_of_processor()


def test_portable_products_are_right_for_any_shape_and_type() -> None:
    _run("-c", PRODUCTS, **VARIABLES)


def _run(*words: str, **variables: str) -> str:
    """Run Python in another process, for the variables are read when torch is imported; return what it prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=HERE.parents[1],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
