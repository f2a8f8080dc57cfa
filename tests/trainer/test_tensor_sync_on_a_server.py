"""A run whose weights reach a real server in buckets has the bytes of one whose weights travel in a folder, also after a failed sync."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer import runs

from dagrpo.algorithms.config import Algorithm
from dagrpo.engine import open_engine
from dagrpo.engine.errors import ServerError
from dagrpo.engine.interface import WeightVersion
from dagrpo.engine.sglang.client import ServerClient
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.run import TrainingRun

pytestmark = [pytest.mark.server, pytest.mark.nightly]
FAILS_AT = 2  # bucket


@pytest.fixture(autouse=True, scope="module")
def _deterministic() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def _run(inputs: tuple[Path, Path], out: Path, weight_sync: str) -> TrainingRun:
    """A fresh model's attempts are all equally bad: the entropy's term has a gradient none the less."""
    out.mkdir()
    run = runs.training_run(inputs, out / "state", out, 3)
    engine = {"weight_sync": weight_sync, "start_timeout": 240, "request_timeout": 120}
    terms = {"terms": {"entropy": {"coefficient": 0.1}}}
    return replace(
        run,
        algorithm=Algorithm.model_validate(run.algorithm.model_dump() | terms),
        runtime=Runtime.model_validate(run.runtime.model_dump() | {"engine": engine}),
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
