"""A run whose weights reach real servers in buckets has the bytes of one whose weights travel in a folder, also after a failed sync.

`python -m dagrpo.pipeline.launch 2 tests/trainer/test_tensor_sync_on_a_server.py INITIAL SPLIT OUT WEIGHT_SYNC KEY` trains in two
processes with two servers, or one over two ranks, by the key of runtime.engine.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import runs

from dagrpo.algorithms.config import Algorithm
from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.tensors import TensorSpec
from dagrpo.engine import open_engine
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.engine.sglang.tensor_sync import SharedMemory
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.run import TrainingRun, no_report
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import World, process_group

pytestmark = [pytest.mark.server, pytest.mark.nightly]
FAILS_AT = 2  # bucket


@pytest.fixture(autouse=True, scope="module")
def _deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def _run(inputs: tuple[Path, Path], out: Path, weight_sync: str, key: str | None = None) -> TrainingRun:
    """A fresh model's attempts are all equally bad: the entropy's term has a gradient none the less."""
    out.mkdir(exist_ok=True)
    run = runs.training_run(inputs, out / "state", out, 3)
    engine = {"weight_sync": weight_sync, "start_timeout": 240, "request_timeout": 120} | ({key: 2} if key else {})
    training = run.runtime.training.model_copy(update={"processes": 2 if key else 1})
    terms = {"terms": {"entropy": {"coefficient": 0.1}}}
    return replace(
        run,
        algorithm=Algorithm.model_validate(run.algorithm.model_dump() | terms),
        runtime=Runtime.model_validate(
            run.runtime.model_dump() | {"engine": engine, "training": training.model_dump()}
        ),
    )


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
    for weight_sync in ("folder", "tensors"):
        runs.launch(2, __file__, *inputs, tmp_path / weight_sync, weight_sync, key)
    through_a_folder, opened = (_run(inputs, tmp_path / way, way, key) for way in ("folder", "tensors"))
    assert runs.bytes_of(opened) == runs.bytes_of(through_a_folder)
    handed = [int((tmp_path / way / f"handed_{rank}").read_text()) for way in ("folder", "tensors") for rank in (0, 1)]
    assert handed[:2] == [0, 0]
    assert handed[2] == handed[3] > 0, "each process has a bucket for each weight sync"


def _train(inputs: tuple[Path, Path], out: Path, weight_sync: str, key: str, world: World) -> None:
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
    (out / f"handed_{world.rank}").write_text(f"{len(handles)}")


if __name__ == "__main__":
    with process_group(deterministic=True) as joint:
        _train((Path(sys.argv[1]), Path(sys.argv[2])), Path(sys.argv[3]), sys.argv[4], sys.argv[5], joint)
