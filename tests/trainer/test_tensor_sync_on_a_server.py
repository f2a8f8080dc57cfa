"""A run whose weights reach real servers in buckets has the bytes of one whose weights travel in a folder, also after a failed sync."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tests.trainer import runs

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.tensors import TensorSpec
from dagrpo.engine import open_engine
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.tensor_sync import SharedMemory
from dagrpo.trainer.run import TrainingRun, no_report
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import World

pytestmark = [pytest.mark.server, pytest.mark.nightly]
FAILS_AT = 2  # bucket


def _run(inputs: tuple[Path, Path], out: Path, weight_sync: str, key: str | None = None) -> TrainingRun:
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
    through_a_folder, broken = (_run(inputs, tmp_path / way, way) for way in ("folder", "tensors"))
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
    through_a_folder, opened = (_run(inputs, tmp_path / way, way, key) for way in ("folder", "tensors"))
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
        train(_run(inputs, out, weight_sync, key), no_report, world)
    return len(handles)
