"""Supervised fine-tuning: its gradient, and that an interrupted run leaves the bytes of a whole one."""

import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import runs
from transformers import AutoModelForCausalLM

from dagrpo.chat.renderers import chat_format
from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.source import open_tensors
from dagrpo.models.tokenizer import character_tokenizer
from dagrpo.trainer.batches.batch import MicroBatch, PaddedBatch
from dagrpo.trainer.batches.packed_rows import PackedBatch
from dagrpo.trainer.batches.supervised import supervised_sequences
from dagrpo.trainer.config.runtime import Layout, SftRuntime
from dagrpo.trainer.config.sft import Sft
from dagrpo.trainer.model.policy import Policy, token_logprobs
from dagrpo.trainer.run import SftRun
from dagrpo.trainer.sft import fine_tune
from dagrpo.utils.distributed import World, single_process
from dagrpo.utils.manifest import MANIFEST

Reported = list[tuple[int, dict[str, float]]]


def _run(inputs: tuple[Path, Path], out: Path, steps: int = 4, **runtime: Any) -> SftRun:
    return SftRun(
        model=inputs[0].with_name("model"),  # in the Hugging Face layout
        train_splits={"arithmetic": inputs[1]},
        seed=3,
        sft=Sft(steps=steps, batch_size=6, learning_rate=1e-2, learning_rate_warmup_steps=2),
        runtime=SftRuntime.model_validate({"save_every": 2, **runtime}),
        state=out / "state",
        tuned=out / "tuned",
    )


def _execute(run: SftRun, stop: Callable[[int], bool] = lambda step: False) -> Reported:
    reported: Reported = []

    def report(step: int, metrics: Mapping[str, float]) -> None:
        reported.append((step, dict(metrics)))
        if stop(step):
            raise runs.Interrupted

    with suppress(runs.Interrupted):
        fine_tune(run, report, single_process())
    return reported


def _bytes(run: SftRun) -> bytes:
    return (run.tuned / MANIFEST).read_bytes()


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[SftRun, Reported]:
    run = _run(inputs, tmp_path_factory.mktemp("whole"))
    return run, _execute(run)


def test_the_first_loss_and_gradient_are_those_of_the_mean_over_target_tokens(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path, steps=1)
    ((_, first),) = _execute(replace(run, sft=run.sft.model_copy(update={"batch_size": 10})))
    model = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32).eval()
    losses = []
    tokenizer = character_tokenizer(256)
    chat = chat_format(tokenizer, run.conversation.chat)
    # A batch of ten is the whole split.
    for row in supervised_sequences(inputs[1], tokenizer, chat, run.conversation.tools):
        logits = torch.log_softmax(model(torch.tensor([row.token_ids])).logits[0], dim=-1)
        learned = [position for position, is_learned in enumerate(row.loss_mask) if is_learned]
        losses += [-logits[position - 1, row.token_ids[position]] for position in learned]
    loss = torch.stack(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert first["sft/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert first["sft/grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_a_run_that_was_interrupted_leaves_the_bytes_of_one_that_was_not_and_reports_every_step(
    inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path)
    assert len(_execute(run, stop=lambda step: step == 3)) == 3
    assert [path.name for path in run.state.glob("step_*")] == ["step_00002"]
    assert _execute(run) == whole[1]
    assert _bytes(run) == _bytes(whole[0])


def test_a_run_that_is_told_to_stop_saves_the_step_that_it_was_in(
    inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path)

    def stop(step: int) -> bool:
        if step == 3:
            signal.raise_signal(signal.SIGINT)
        return False

    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            _execute(run, stop=stop)
    finally:
        signal.signal(signal.SIGINT, former)
    assert max(path.name for path in run.state.glob("step_*")) == "step_00003"
    assert _execute(run) == whole[1]
    assert _bytes(run) == _bytes(whole[0])


@pytest.mark.nightly
def test_more_steps_extend_a_finished_run_to_the_bytes_of_a_run_that_had_them_from_the_start(
    inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    short = _run(inputs, tmp_path, steps=3)
    _execute(short)
    longer = _run(inputs, tmp_path)
    assert _execute(longer) == whole[1]
    assert [path.name for path in longer.state.glob("step_*")] == ["step_00004"]
    assert _bytes(longer) == _bytes(whole[0])


@pytest.mark.parametrize("key", ["micro_batch_size", "head_chunk_tokens"])
def test_micro_batches_and_chunks_change_memory_but_not_the_result(
    key: str, inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    cut = _run(inputs, tmp_path, **{key: 4})
    _execute(cut)
    assert all((d.largest or 0.0) < 2e-4 for d in compare(cut.tuned, whole[0].tuned).differences)
    assert any(d.largest for d in compare(cut.model, cut.tuned).differences)


@pytest.mark.parametrize(("layout", "kind"), [(None, PackedBatch), ("padded", PaddedBatch)])
def test_it_computes_in_the_layout_of_its_own_section_and_finds_the_same_loss(
    layout: Layout | None,
    kind: type[MicroBatch],
    inputs: tuple[Path, Path],
    whole: tuple[SftRun, Reported],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[MicroBatch] = []

    def watched(policy: Policy, batch: MicroBatch, *inputs: Any, **options: Any) -> Any:
        computed.append(batch)
        return token_logprobs(policy, batch, *inputs, **options)

    monkeypatch.setattr("dagrpo.trainer.sft.token_logprobs", watched)
    ((_, first),) = _execute(_run(inputs, tmp_path, steps=1, layout=layout))
    assert [type(batch) for batch in computed] == [kind]
    assert first["sft/loss"] == pytest.approx(whole[1][0][1]["sft/loss"], rel=1e-5)


def test_in_bfloat16_it_computes_otherwise_and_keeps_weights_in_float32(
    inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    run = _run(inputs, tmp_path)
    rounded = replace(run, sft=run.sft.model_copy(update={"dtype": "bfloat16"}))
    reported = _execute(rounded)
    losses, rounded_losses = ([metrics["sft/loss"] for _, metrics in each] for each in (whole[1], reported))
    assert rounded_losses != losses
    assert rounded_losses == pytest.approx(losses, rel=0.02)
    tensors = open_tensors(rounded.tuned)
    assert {spec.dtype for spec in tensors.specs.values()} == {torch.float32}


def test_on_a_gpu_it_repeats_itself_where_training_does(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    class Nothing:
        def __init__(self, *_: object) -> None: ...

        def train(self) -> None: ...

    monkeypatch.setattr("dagrpo.trainer.sft.FineTuning", Nothing)
    monkeypatch.setattr("dagrpo.trainer.sft.compute_deterministically", told.append)
    run, cpu = _run(inputs, tmp_path), single_process()
    for world in (replace(cpu, device=torch.device("cuda")), replace(cpu, device=torch.device("cpu"))):
        for deterministic in (True, False):
            fine_tune(replace(run, deterministic=deterministic), lambda step, metrics: None, world)
    assert told == [True, False], "on a GPU alone"


def _tune(world: World, inputs: tuple[Path, Path], out: Path) -> Reported:
    reported: Reported = []
    fine_tune(_run(inputs, out), lambda step, metrics: reported.append((step, dict(metrics))), world)
    return reported


@pytest.mark.nightly
def test_two_processes_leave_the_model_of_one(
    inputs: tuple[Path, Path], whole: tuple[SftRun, Reported], tmp_path: Path
) -> None:
    reported, _ = runs.launch(2, _tune, inputs, tmp_path)
    assert all((d.largest or 0.0) < 2e-4 for d in compare(tmp_path / "tuned", whole[0].tuned).differences)
    for (_, one), (_, two) in zip(whole[1], reported, strict=True):
        assert two == pytest.approx(one, rel=1e-3)


def test_no_steps_pass_the_model_through(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, steps=0)
    assert _execute(run) == []
    for name in (MANIFEST, "model.safetensors"):
        assert (run.tuned / name).read_bytes() == (run.model / name).read_bytes()
    assert not run.state.exists()


def test_the_policy_is_trained_on_the_device_of_its_world(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """On the device without memory (meta), which stands for a GPU: whoever bypasses the world's device trains on."""
    world = replace(single_process(), device=torch.device("meta"))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Mm]eta"):
        fine_tune(_run(inputs, tmp_path), lambda step, metrics: None, world)


def test_the_learning_rate_falls_to_its_share_and_stays_there(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    run = _run(inputs, tmp_path, steps=5)
    falling = {"learning_rate": 1.0, "learning_rate_final": 0.2, "learning_rate_decay_steps": 4}
    reported = _execute(replace(run, sft=run.sft.model_copy(update=falling)))
    # warmed up: 0.5, 1, 1, ...; less 0.2 with each of four steps
    assert [metrics["sft/learning_rate"] for _, metrics in reported] == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.nightly
def test_an_adapter_is_tuned_in_the_place_of_the_weights_and_an_interruption_changes_no_bit(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, halved = (_run(inputs, tmp_path / name) for name in ("whole", "halved"))
    whole, halved = (
        replace(run, sft=Sft.model_validate(run.sft.model_dump() | {"lora": {"rank": 4}})) for run in (whole, halved)
    )
    reported = _execute(whole)
    assert reported[-1][1]["sft/loss"] < reported[0][1]["sft/loss"]
    _execute(halved, stop=lambda step: step == 3)
    assert _execute(halved) == reported
    assert _bytes(halved) == _bytes(whole)
    moved = {each.name for each in compare(whole.model, whole.tuned).differences if each.largest}
    assert len(moved) == 14
    assert (whole.tuned / "adapter" / "adapter_model.safetensors").is_file()
