"""Several processes that train one policy (FSDP2, gloo) do what one process does, and leave the same files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from tests.trainer import runs, updates
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.manifest import verify, write_manifest
from dagrpo.checkpoints.source import open_tensors
from dagrpo.models.config import Fresh
from dagrpo.models.fresh import make_fresh
from dagrpo.utils.distributed import process_group, single_process
from dagrpo.utils.manifest import MANIFEST

SHAPE = Fresh(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,  # 4 rows: the last of three processes holds none of them
    intermediate_size=32,
    max_position_embeddings=128,
)


def _params(format: str) -> Checkpoint:
    return Checkpoint.model_validate({"format": format})


def _run(processes: int, initial: Path, out: Path, first: int = 0, steps: int = 3) -> list[dict[str, Any]]:
    out.mkdir(exist_ok=True)
    if processes == 1:
        updates.run(initial, out, first, steps, single_process())
    else:
        _run_together(processes, initial, out, first, steps)
    seen: list[dict[str, Any]] = json.loads((out / "seen.json").read_text())
    return seen


def _run_together(processes: int, initial: Path, out: Path, first: int, steps: int) -> None:
    runs.launch(processes, updates.__file__, initial, out, first, steps, 0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    make_fresh(folder, SHAPE, torch.float32)
    return folder


@pytest.fixture(scope="module")
def initial(source: Path) -> Path:
    convert(source, source.parent / "initial", _params("dcp"))
    return source.parent / "initial"


class Trained(dict[int, Path]):
    """Folders of the same three updates by a number of processes, which run when the folder is first asked for."""

    def __init__(self, initial: Path, out: Path) -> None:
        super().__init__()
        self.initial, self.out = initial, out

    def __missing__(self, processes: int) -> Path:
        self[processes] = self.out / str(processes)
        _run(processes, self.initial, self[processes])
        return self[processes]


@pytest.fixture(scope="module")
def trained(initial: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(initial, tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize("processes", everyday([2], [2, 3]))
def test_the_updates_are_those_of_one_process(processes: int, trained: Trained) -> None:
    alone, together = (json.loads((trained[n] / "seen.json").read_text()) for n in (1, processes))
    assert len(alone) == 3
    assert all(step["kl"] > 0 for step in alone)  # every part of the loss is at work
    assert [step["clipped"] > 0 for step in alone] == [True, True, False]  # the last has a single mini-batch
    for one, other in zip(alone, together, strict=True):
        for name in one:
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(one[name]), atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("processes", everyday([2], [2, 3]))
def test_the_trained_policy_is_that_of_one_process(processes: int, initial: Path, trained: Trained) -> None:
    _assert_close(trained[1] / "policy", trained[processes] / "policy")
    moved = max(difference.largest or 0.0 for difference in compare(initial, trained[1] / "policy").differences)
    assert moved > 1e-2


@pytest.mark.nightly
def test_the_head_in_chunks_trains_the_policy_of_one_process_without(
    initial: Path, trained: Trained, tmp_path: Path
) -> None:
    """The head's weights are gathered in the forward pass, and read again in the backward pass."""
    runs.launch(2, updates.__file__, initial, tmp_path, 0, 3, 0, "--head-chunk-tokens", 2)
    _assert_close(trained[1] / "policy", tmp_path / "policy")


@pytest.mark.nightly
def test_layers_that_are_computed_again_leave_the_bytes_of_the_same_processes_without(
    initial: Path, trained: Trained, tmp_path: Path
) -> None:
    runs.launch(2, updates.__file__, initial, tmp_path, 0, 3, 0, "--activation-checkpointing")
    assert (tmp_path / "seen.json").read_bytes() == (trained[2] / "seen.json").read_bytes()
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (trained[2] / "policy" / MANIFEST).read_bytes()


@pytest.mark.nightly
def test_packed_rows_train_the_policy_of_padded_ones_and_a_resumed_run_leaves_their_bytes(
    initial: Path, trained: Trained, tmp_path: Path
) -> None:
    """By two processes, one of which has fillers. The second half of the other run computes layers again."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    packed = [0, "--layout", "packed"]
    runs.launch(2, updates.__file__, initial, whole, 0, 3, *packed)
    runs.launch(2, updates.__file__, initial, resumed, 0, 1, *packed)
    runs.launch(2, updates.__file__, initial, resumed, 1, 3, *packed, "--activation-checkpointing")
    _assert_close(trained[1] / "policy", whole / "policy")
    assert (resumed / "policy" / MANIFEST).read_bytes() == (whole / "policy" / MANIFEST).read_bytes()


def _assert_close(one: Path, other: Path) -> None:
    differences = compare(one, other).differences
    assert all(difference.largest is not None and difference.largest < 2e-4 for difference in differences)


@pytest.mark.parametrize("processes", everyday([2], [2, 3]))
def test_every_process_writes_its_part_and_export_puts_them_together(
    processes: int, trained: Trained, tmp_path: Path
) -> None:
    policy = trained[processes] / "policy"
    assert len(list(policy.glob("*.safetensors"))) == processes
    verify(policy)
    export(policy, tmp_path / "exported", _params("dcp"))
    assert compare(policy, tmp_path / "exported").differences == ()


@pytest.mark.parametrize("processes", everyday([1, 2], [1, 2, 3]))
def test_the_engine_gets_the_weights_that_are_saved(processes: int, trained: Trained) -> None:
    engine, saved = open_tensors(trained[processes] / "engine"), open_tensors(trained[processes] / "policy")
    assert engine.specs.keys() == saved.specs.keys()
    assert all(torch.equal(engine.read(name), saved.read(name).to(torch.bfloat16)) for name in saved.specs)


@pytest.fixture(scope="module")
def interrupted(initial: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes after two of three updates."""
    out = tmp_path_factory.mktemp("interrupted")
    _run(2, initial, out, steps=2)
    return out


def test_a_resumed_run_leaves_the_bytes_of_an_uninterrupted_one(
    initial: Path, interrupted: Path, trained: Trained, tmp_path: Path
) -> None:
    shutil.copytree(interrupted / "states", tmp_path / "states")
    seen = _run(2, initial, tmp_path, first=2)
    assert seen == json.loads((trained[2] / "seen.json").read_text())[2:]
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (trained[2] / "policy" / MANIFEST).read_bytes()


@pytest.mark.parametrize("processes", everyday([1], [1, 3]))
def test_a_state_of_two_processes_is_resumed_by_any_number(
    processes: int, initial: Path, interrupted: Path, trained: Trained, tmp_path: Path
) -> None:
    shutil.copytree(interrupted / "states", tmp_path / "states")
    _run(processes, initial, tmp_path, first=2)
    _assert_close(trained[1] / "policy", tmp_path / "policy")


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [1, 2])
def test_what_three_processes_wrote_is_where_any_number_can_start(
    processes: int, trained: Trained, tmp_path: Path
) -> None:
    start = trained[3] / "policy"
    _run(processes, start, tmp_path, steps=0)
    assert compare(start, tmp_path / "policy").differences == ()
    assert verify(tmp_path / "policy").tensors == verify(start).tensors


@pytest.mark.nightly
def test_a_policy_in_megatrons_format_is_trained_and_written_in_it(
    source: Path, trained: Trained, tmp_path: Path
) -> None:
    convert(source, tmp_path / "initial", _params("megatron"))
    _run(2, tmp_path / "initial", tmp_path / "out")
    assert verify(tmp_path / "out" / "policy").format == "megatron"
    assert compare(tmp_path / "out" / "policy", trained[2] / "policy").differences == ()


@pytest.mark.nightly
def test_experts_that_transformers_fuses_are_trained_by_two_processes(source: Path, tmp_path: Path) -> None:
    config = Qwen3MoeConfig(
        vocab_size=260, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    shutil.copytree(source, tmp_path / "source")
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "source")
    write_manifest(tmp_path / "source", "huggingface", HuggingFaceTensors(tmp_path / "source"))
    convert(tmp_path / "source", tmp_path / "initial", _params("dcp"))
    for processes in (1, 2):
        _run(processes, tmp_path / "initial", tmp_path / str(processes), steps=1)
    one, two = (tmp_path / number / "policy" for number in ("1", "2"))
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in open_tensors(two).specs
    assert any(difference.largest for difference in compare(tmp_path / "initial", two).differences)
    _assert_close(one, two)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with (
        pytest.raises(ValueError, match=r"training\.processes is 3, but this machine has 2 GPUs.*: set it to 2"),
        process_group(),
    ):
        pytest.fail("no process group can be made")
