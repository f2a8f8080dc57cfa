"""Weights that reach real servers as adapters or in buckets: the run agrees, repeats, goes on, and is caught when it is wrong."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import adapter_runs, runs
from tests.trainer.lending import lending_served

from dagrpo.checkpoints.compare import compare
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.tensors import StateTensors, Tensors, TensorSpec
from dagrpo.core.errors import UserError
from dagrpo.engine import open_engine
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import EngineOpener, WeightVersion
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.tensor_sync import SharedMemory
from dagrpo.engine.weight_files import AdapterFolders
from dagrpo.trainer.checks.logprob_agreement import PROBED_LARGEST, PROBED_OUTSIDE
from dagrpo.trainer.checks.weight_sync import COMPARED
from dagrpo.trainer.run import TrainingRun, no_report
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import World
from dagrpo.utils.tables import read_parquet

pytestmark = [pytest.mark.server, pytest.mark.nightly]

Inputs = tuple[Path, Path]


def _run(
    inputs: Inputs, out: Path, *, steps: int = 3, staleness: int = 0, replicas: int = 1, **lora: Any
) -> TrainingRun:
    """A fresh model's attempts are all equally bad: the entropy's term has a gradient none the less."""
    out.mkdir(parents=True, exist_ok=True)
    plain = runs.training_run(inputs, out / "state", out, steps)
    run = adapter_runs.with_adapter(plain, adapter_runs.SERVED | lora)
    return runs.changed(
        run,
        algorithm={"terms": {"entropy": {"coefficient": 0.1}}},
        training={"staleness": staleness},
        runtime={"engine": {"replicas": replicas, "start_timeout": 240, "request_timeout": 120}},
    )


@pytest.fixture(scope="module")
def opener() -> Iterator[EngineOpener]:
    """Open one server, for all runs of the module that need no other."""
    with ExitStack() as stack:
        yield lending_served(stack)


@pytest.fixture(scope="module")
def whole(
    inputs: Inputs, opener: EngineOpener, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainingRun, list[dict[str, float]]]:
    run = _run(inputs, tmp_path_factory.mktemp("whole"))
    return run, runs.metrics_with(run, opener)


def test_engine_and_trainer_agree_to_rounding_and_every_weight_sync_is_checked(
    whole: tuple[TrainingRun, list[dict[str, float]]],
) -> None:
    run, reported = whole
    assert [metrics[PROBED_OUTSIDE] for metrics in reported] == [0.0] * 3
    assert all(metrics[PROBED_LARGEST] < 2e-6 for metrics in reported)
    assert reported[0][COMPARED] > reported[1][COMPARED] == 2 * 2 * 4, (
        "weights and adapter; then A and B of 4 joined layers"
    )
    metrics = read_parquet(run.metrics)
    assert max(metrics["policy/logprob_difference_max"].to_pylist()) < 2e-6
    assert min(metrics["policy/grad_norm"].to_pylist()) > 0
    assert len({each.name for each in compare(run.initial, run.policy).differences if each.largest}) == 14


def test_a_run_goes_on_after_an_interruption_to_the_bit(
    whole: tuple[TrainingRun, list[dict[str, float]]], inputs: Inputs, opener: EngineOpener, tmp_path: Path
) -> None:
    halved = _run(inputs, tmp_path)
    assert len(runs.metrics_with(halved, opener, stop=lambda step: step == 3)) == 3
    assert not halved.policy.exists()
    runs.metrics_with(halved, opener)
    assert runs.bytes_of(halved) == runs.bytes_of(whole[0])


def test_batches_that_two_servers_sample_ahead_are_the_same_after_an_interruption(
    inputs: Inputs, tmp_path: Path
) -> None:
    """Earlier versions of the adapter are kept with the state, and are handed over again."""
    whole, halved = (_run(inputs, tmp_path / name, steps=4, staleness=1, replicas=2) for name in ("whole", "halved"))
    reported = runs.metrics_with(whole, open_engine)
    assert [metrics["rollout/staleness"] for metrics in reported] == [0, 1, 1, 1]
    assert all(metrics[PROBED_LARGEST] < 2e-6 for metrics in reported)
    assert len(runs.metrics_with(halved, open_engine, stop=lambda step: step == 3)) == 3
    runs.metrics_with(halved, open_engine)
    assert runs.bytes_of(halved) == runs.bytes_of(whole)


def test_a_file_whose_second_half_never_arrives_is_found_by_the_digests_of_what_is_served(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = AdapterFolders.write

    def write_half(folders: AdapterFolders, tensors: Tensors, version: WeightVersion) -> Path:
        read = {name: tensors.read(name) for name in sorted(tensors.specs)}
        halved = {
            name: 0 * each if number > len(read) // 2 else each for number, (name, each) in enumerate(read.items())
        }
        return write(folders, StateTensors(halved), version)

    monkeypatch.setattr(AdapterFolders, "write", write_half)
    with pytest.raises(UserError, match=r"after step 0 server 0 holds other weights .* such as base_model\.model"):
        runs.metrics_with(_run(inputs, tmp_path), open_engine)


FAILS_AT = 2  # bucket


def _run_in_buckets(inputs: tuple[Path, Path], out: Path, weight_sync: str, key: str | None = None) -> TrainingRun:
    """A fresh model's attempts are all equally bad: the entropy's term has a gradient none the less."""
    out.mkdir(exist_ok=True)
    run = runs.training_run(inputs, out / "state", out, 3)
    engine = {"weight_sync": weight_sync, "start_timeout": 240, "request_timeout": 120} | ({key: 2} if key else {})
    terms = {"entropy": {"coefficient": 0.1}}
    runtime = {"engine": engine, "training": {"processes": 2 if key else 1}}
    return runs.changed(run, algorithm={"terms": terms}, runtime=runtime)


def test_a_sync_that_fails_after_its_first_bucket_leaves_a_run_that_goes_on_to_the_bytes_of_the_folder(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_a_folder, broken = (_run_in_buckets(inputs, tmp_path / way, way) for way in ("folder", "tensors"))
    runs.metrics_with(through_a_folder, open_engine)
    monkeypatch.setattr("dagrpo.engine.sglang.tensor_sync.BUCKET_BYTES", 1)
    load_bucket, versions = ServerClient.load_bucket, []

    async def fail_once(client: ServerClient, payload: str, version: WeightVersion | None) -> None:
        versions.append(version)
        if len(versions) == FAILS_AT:
            raise ServerError("the server refused a bucket")
        await load_bucket(client, payload, version)

    monkeypatch.setattr(ServerClient, "load_bucket", fail_once)
    with pytest.raises(ServerError, match="refused a bucket"):
        runs.metrics_with(broken, open_engine)
    assert not broken.policy.exists()
    assert [version for version in versions if version] == [], "no version is named before the last bucket"
    runs.metrics_with(broken, open_engine)
    assert len(versions) > FAILS_AT
    assert runs.bytes_of(broken) == runs.bytes_of(through_a_folder)


@pytest.mark.parametrize("key", ["replicas", "tensor_parallel"])
def test_servers_that_open_the_memory_of_the_process_beside_them_leave_the_bytes_of_the_folder(
    key: str, fresh_model: Path, tmp_path: Path
) -> None:
    convert(fresh_model, tmp_path / "initial", Checkpoint())
    inputs = tmp_path / "initial", runs.make_split(tmp_path)
    handed = [runs.launch(2, _train, inputs, tmp_path / way, way, key) for way in ("folder", "tensors")]
    through_a_folder, opened = (_run_in_buckets(inputs, tmp_path / way, way, key) for way in ("folder", "tensors"))
    assert runs.bytes_of(opened) == runs.bytes_of(through_a_folder)
    assert handed[0] == [0, 0]
    assert handed[1][0] == handed[1][1] > 0, "each process has a bucket for each weight sync"


def _train(world: World, inputs: tuple[Path, Path], out: Path, weight_sync: str, key: str) -> int:
    """Train with two servers, or one over two ranks, by the key of runtime.engine; return how many handles this rank made."""
    handles: list[str] = []
    hold = SharedMemory.hold

    def counted(
        memory: SharedMemory, specs: Mapping[str, TensorSpec], read: Callable[[str], torch.Tensor]
    ) -> str | None:
        handle = hold(memory, specs, read)
        handles.extend([handle] if handle else [])
        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedMemory, "hold", counted)
        train(_run_in_buckets(inputs, out, weight_sync, key), no_report, world)
    return len(handles)
