"""Several processes that train one policy (FSDP2, gloo) do what one process does, and leave the same files."""

import json
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.everyday import everyday
from tests.trainer import picture_runs, runs, updates
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert, export
from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.lora_layers import WEIGHTS
from dagrpo.checkpoints.manifest import verify, write_manifest
from dagrpo.checkpoints.safetensors_file import SafetensorsFile
from dagrpo.checkpoints.source import open_tensors
from dagrpo.trainer.model.vision_tower import Vision
from dagrpo.utils.distributed import process_group, single_process
from dagrpo.utils.manifest import MANIFEST


@dataclass(frozen=True)
class Case:
    """Policy that is trained: of text, or with pictures; all weights, or an adapter of that rank."""

    family: str | None = None
    vision: Vision | None = None
    rank: int = 0

    @property
    def most(self) -> float:
        """Return how far weights of one process and of several may be apart."""
        return 2e-4 if self == TEXT else 1e-3

    def train(self, processes: int, initial: Path, out: Path, *given: int) -> list[dict[str, Any]]:
        """Return what the steps saw."""
        run = partial(updates.run, kind=self.vision, rank=self.rank)
        if processes == 1:
            return run(single_process(), initial, out, *given)
        seen: list[dict[str, Any]] = runs.launch(processes, run, initial, out, *given)[0]
        return seen


TEXT = Case()
CASES = {
    "text": TEXT,
    "adapter of text": Case(None, None, 4),
    "adapter of pictures": Case("qwen2_5_vl", "trained", 4),
    "trained tower": Case("qwen2_5_vl", "trained"),
    "frozen tower": Case("qwen3_vl", "frozen"),
}


class Trained(dict[int, Path]):
    """Folders of the same three updates by a number of processes, which run when the folder is first asked for.

    The second of two processes has nothing to do at times.
    """

    def __init__(self, case: Case, initial: Path, out: Path) -> None:
        super().__init__()
        self.case, self.initial, self.out = case, initial, out

    def __missing__(self, processes: int) -> Path:
        self[processes] = self.out / str(processes)
        self.case.train(processes, self.initial, self[processes])
        return self[processes]

    def seen(self, processes: int) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = json.loads((self[processes] / "seen.json").read_text())
        return seen


@pytest.fixture(scope="module", params=everyday(["text"], CASES))
def trained(
    request: pytest.FixtureRequest, inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("trained")
    initial = picture_runs.make_inputs(folder, case.family)[0] if case.family else inputs[0]
    return Trained(case, initial, folder)


@pytest.fixture(scope="module")
def of_text(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(TEXT, inputs[0], tmp_path_factory.mktemp("of_text"))


def _assert_close(one: Path, other: Path, most: float = 2e-4) -> None:
    differences = compare(one, other).differences
    assert all(difference.largest is not None and difference.largest < most for difference in differences)


@pytest.mark.parametrize("processes", everyday([2], [2, 3]))
def test_updates_and_policy_are_those_of_one_process(processes: int, trained: Trained) -> None:
    case = trained.case
    alone, together = trained.seen(1), trained.seen(processes)
    assert len(alone) == 3
    assert alone[-1]["kl"] > 0  # every part of the loss is at work
    if case == TEXT:
        assert [step["clipped"] > 0 for step in alone] == [True, True, False]  # the last has a single mini-batch
    for one, other in zip(alone, together, strict=True):
        for name in one:
            torch.testing.assert_close(torch.tensor(other[name]), torch.tensor(one[name]), atol=2e-4, rtol=2e-3)
    _assert_close(trained[1] / "policy", trained[processes] / "policy", case.most)
    differences = compare(trained.initial, trained[processes] / "policy").differences
    moved = {each.name for each in differences if (each.largest or 0) > 1e-3 * (case.rank > 0)}
    assert max(each.largest or 0.0 for each in differences) > 1e-2
    if not case.rank:
        assert any("visual" in name for name in moved) == (case.vision == "trained")


@pytest.mark.parametrize("processes", everyday([1, 2], [1, 2, 3]))
def test_the_engine_gets_the_weights_that_are_saved(processes: int, trained: Trained) -> None:
    engine, saved = open_tensors(trained[processes] / "engine"), open_tensors(trained[processes] / "policy")
    assert engine.specs.keys() == saved.specs.keys()
    assert all(torch.equal(engine.read(name), saved.read(name).to(torch.bfloat16)) for name in saved.specs)
    if trained.case.rank:
        one, two = (SafetensorsFile(trained[n] / "policy" / "adapter" / WEIGHTS) for n in (1, processes))
        assert (one.names, one.metadata) == (two.names, two.metadata)
        for name in one.names:
            torch.testing.assert_close(one.read(name), two.read(name), atol=1e-3, rtol=1e-2)


def test_a_resumed_run_leaves_the_bytes_of_an_uninterrupted_one(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained[2] / "states" / "step_00002", tmp_path / "states" / "step_00002")
    assert trained.case.train(2, trained.initial, tmp_path, 2) == trained.seen(2)[2:]
    assert (tmp_path / "policy" / MANIFEST).read_bytes() == (trained[2] / "policy" / MANIFEST).read_bytes()


@pytest.mark.parametrize("processes", everyday([1], [1, 3]))
def test_a_state_of_two_processes_is_resumed_by_any_number(processes: int, of_text: Trained, tmp_path: Path) -> None:
    shutil.copytree(of_text[2] / "states" / "step_00002", tmp_path / "states" / "step_00002")
    TEXT.train(processes, of_text.initial, tmp_path, 2)
    _assert_close(of_text[1] / "policy", tmp_path / "policy")


@pytest.mark.parametrize("processes", everyday([2], [2, 3]))
def test_every_process_writes_its_part_and_export_puts_them_together(
    processes: int, of_text: Trained, tmp_path: Path
) -> None:
    policy = of_text[processes] / "policy"
    assert len(list(policy.glob("*.safetensors"))) == processes
    verify(policy)
    export(policy, tmp_path / "exported", Checkpoint(format="dcp"))
    assert compare(policy, tmp_path / "exported").differences == ()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "same_bytes"),
    [
        ({"head_chunk_tokens": 2}, False),  # the head's weights are gathered forward, and read again backward
        ({"activation_checkpointing": True}, True),
        ({"layout": "packed"}, False),  # one of the processes has fillers
    ],
    ids=str,
)
def test_other_ways_to_compute_train_the_same_policy(
    options: dict[str, Any], same_bytes: bool, of_text: Trained, tmp_path: Path
) -> None:
    """The second half of the other run computes layers again, which changes no byte."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run = partial(updates.run, **options)
    runs.launch(2, run, of_text.initial, whole)
    runs.launch(2, run, of_text.initial, resumed, 0, 1)
    runs.launch(2, partial(run, activation_checkpointing=True), of_text.initial, resumed, 1, 3)
    _assert_close(of_text[1] / "policy", whole / "policy")
    manifests = [(out / "policy" / MANIFEST).read_bytes() for out in (whole, resumed, of_text[2])]
    assert manifests[0] == manifests[1]
    assert manifests[0] == manifests[2] or not same_bytes


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [1, 2])
def test_what_three_processes_wrote_is_where_any_number_can_start(
    processes: int, of_text: Trained, tmp_path: Path
) -> None:
    start = of_text[3] / "policy"
    TEXT.train(processes, start, tmp_path, 0, 0)
    assert compare(start, tmp_path / "policy").differences == ()
    assert verify(tmp_path / "policy").tensors == verify(start).tensors


@pytest.mark.nightly
def test_a_policy_in_megatrons_format_is_trained_and_written_in_it(of_text: Trained, tmp_path: Path) -> None:
    convert(of_text.initial.with_name("model"), tmp_path / "initial", Checkpoint(format="megatron"))
    TEXT.train(2, tmp_path / "initial", tmp_path / "out")
    assert verify(tmp_path / "out" / "policy").format == "megatron"
    assert compare(tmp_path / "out" / "policy", of_text[2] / "policy").differences == ()


@pytest.mark.nightly
def test_experts_that_transformers_fuses_are_trained_by_two_processes(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    config = Qwen3MoeConfig(
        vocab_size=260, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    source = tmp_path / "source"
    shutil.copytree(inputs[0].with_name("model"), source)
    Qwen3MoeForCausalLM(config).save_pretrained(source)
    write_manifest(source, "huggingface", HuggingFaceTensors(source))
    convert(source, tmp_path / "initial", Checkpoint(format="dcp"))
    for processes in (1, 2):
        TEXT.train(processes, tmp_path / "initial", tmp_path / str(processes), 0, 1)
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
