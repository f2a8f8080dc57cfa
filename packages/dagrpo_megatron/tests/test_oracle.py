"""megatron-core itself loads what is written here, computes what transformers computes, and saves what is read here.

It needs an environment of its own (requirements/megatron-test.lock): DAGRPO_MEGATRON_PYTHON names its Python.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from packages.dagrpo_megatron.tests.families import FAMILIES
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.convert import write_as
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import tensor_digest
from dagrpo.checkpoints.source import open_checkpoint, open_tensors
from dagrpo_megatron.arguments import FILE

pytestmark = pytest.mark.nightly

ORACLE = Path(__file__).with_name("oracle.py")
TOKENS = [1, 5, 7, 200, 31, 8, 9, 100, 3, 2]
LARGE = 1 << 30
DENSE = [name for name in FAMILIES if "moe" not in name and name != "mixtral"]
EXPERTS = ["qwen3_moe", "qwen3_moe_unnormalised", "mixtral"]
LAYOUTS: dict[str, dict[str, int]] = {
    "TP1": {},
    "TP2": {"tensor": 2},
    "TP4": {"tensor": 4},
    "PP2": {"pipeline": 2},
    "TP2PP2": {"tensor": 2, "pipeline": 2},
}
EXPERT_LAYOUTS = LAYOUTS | {"EP2": {"expert": 2}}
SAVED = ("TP2PP2", "EP2")
CASES = [(name, layout) for name in DENSE for layout in LAYOUTS]
CASES += [(name, layout) for name in EXPERTS for layout in EXPERT_LAYOUTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where the models are, and what megatron-core made of them."""

    folder: Path
    reference: dict[str, torch.Tensor]

    def logits(self, name: str, layout: str) -> list[torch.Tensor]:
        files = sorted((self.folder / name).glob(f"{layout}.logits.*"))
        return [torch.load(file, weights_only=True) for file in files]


def _python() -> str:
    python = os.environ.get("DAGRPO_MEGATRON_PYTHON")
    if python is None:
        pytest.skip("DAGRPO_MEGATRON_PYTHON does not name the Python of an environment with megatron-core")
    return python


def _case(folder: Path, layout: str, name: str) -> dict[str, Any]:
    model = folder / name
    return {
        "arguments": (model / "megatron" / FILE).read_text().splitlines(),
        "load": str(model / "megatron" / "release"),
        "tokens": TOKENS,
        "logits": str(model / f"{layout}.logits"),
        "save": str(model / layout) if layout in SAVED else None,
        # Megatron pads the vocabulary to what its tensor ranks divide: 256 rows load into 384.
        "vocabulary": 384 if layout == "TP2" else None,
        **EXPERT_LAYOUTS[layout],
    }


def _reference(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        return torch.as_tensor(model(torch.tensor([TOKENS])).logits[0])


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every case in one run of four processes: starting megatron-core takes longer than all of them."""
    python, folder = _python(), tmp_path_factory.mktemp("oracle")
    for name in (*DENSE, *EXPERTS):
        FAMILIES[name].save(folder / name / "source")
        write_as("megatron", open_checkpoint(folder / name / "source"), folder / name / "megatron", LARGE)
    cases = folder / "cases.json"
    cases.write_text(json.dumps([_case(folder, layout, name) for name, layout in CASES]))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "ignore", str(ORACLE), str(cases)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(folder=folder, reference={name: _reference(folder / name / "source") for name in (*DENSE, *EXPERTS)})


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} {layout}" for name, layout in CASES])
def test_megatron_computes_what_transformers_computes(
    name: str, layout: str, oracle: Run, record_property: Callable[[str, object], None]
) -> None:
    found = oracle.logits(name, layout)
    reference = oracle.reference[name]
    assert found
    assert reference.abs().max() > 0.1
    largest = max((logits[:, :256] - reference).abs().max().item() for logits in found)
    record_property("largest_difference", largest)
    assert largest < 1e-5


@pytest.mark.parametrize(("name", "layout"), [case for case in CASES if case[1] in SAVED])
def test_what_megatron_saves_comes_back_identical(name: str, layout: str, oracle: Run, tmp_path: Path) -> None:
    saved, source = oracle.folder / name / layout, oracle.folder / name / "source"
    write_as("huggingface", open_checkpoint(saved, source), tmp_path / "back", LARGE)
    assert tensor_digest(open_tensors(tmp_path / "back")) == tensor_digest(HuggingFaceTensors(source))
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
