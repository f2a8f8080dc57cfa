"""The gates on the real server: its digests are those of the weights it was handed, and a probe agrees with the trainer."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.engine.pools import pool_over
from tests.trainer import runs
from tests.trainer.checks.probes import probe_on

from dagrpo.checkpoints.config import Checkpoint
from dagrpo.checkpoints.convert import convert
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.engine.sglang.digests import counterparts
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.checks.logprob_agreement import PROBED_LARGEST, PROBED_OUTSIDE, Probe
from dagrpo.trainer.checks.weight_sync import COMPARED, WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet

pytestmark = pytest.mark.server
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def initial(fresh_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "initial"
    convert(fresh_model, folder, Checkpoint())
    return folder


@pytest.fixture(scope="module")
def weights(initial: Path) -> State:
    tensors = open_tensors(initial)
    return {name: tensors.read(name) for name in tensors.specs}


@pytest.fixture(scope="module")
def engine(fresh_server: SGLangServer, fresh_model: Path, weights: State) -> Iterator[ServerPool]:
    with pool_over([fresh_server.endpoint], fresh_model, keeps_all=True) as pool:
        pool.load(StateTensors(weights), "initial")
        yield pool


@pytest.fixture
def probe_of(initial: Path, tmp_path: Path) -> Callable[[Rollout], Probe]:
    rows = [runs.task_row(number) for number in range(4)]
    return lambda rollout: probe_on(initial, load_policy(initial, single_process()), rows, tmp_path / "state", rollout)


def test_a_healthy_weight_sync_passes_with_every_tensor_known(engine: ServerPool, weights: State) -> None:
    ((held,),) = [server.ranks for server in engine.digests()]
    assert counterparts([*held], [*weights]).keys() == held.keys()
    figures = WeightSyncCheck(Gates(), 7).check(engine, StateTensors(weights), 0, updated=False)
    assert figures == {COMPARED: len(held)}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_healthy_probe_agrees_to_rounding(
    temperature: float, engine: ServerPool, probe_of: Callable[[Rollout], Probe]
) -> None:
    figures = probe_of(Rollout(temperature=temperature)).check(engine, 0)
    assert figures[PROBED_OUTSIDE] == 0
    assert figures[PROBED_LARGEST] < 1e-4


def test_half_of_the_weights_are_refused_by_digest_and_by_probe(
    engine: ServerPool, weights: State, probe_of: Callable[[Rollout], Probe]
) -> None:
    half = dict(sorted(weights.items())[: len(weights) // 2])
    engine.load(StateTensors(weights | {name: tensor * 1.5 for name, tensor in half.items()}), "half")
    try:
        with pytest.raises(UserError, match="after step 3 server 0 holds other weights than were synced"):
            WeightSyncCheck(Gates(), 7).check(engine, StateTensors(weights), 3, updated=True)
        with pytest.raises(UserError, match=r"before step 4: of .* probed tokens") as caught:
            probe_of(Rollout()).check(engine, 3)
    finally:
        engine.load(StateTensors(weights), "whole")
    table = read_parquet(Path(str(caught.value).partition("Look at ")[2].removesuffix(".")))
    assert max(map(abs, table["difference"].to_pylist())) > 0.01
    assert set(table["temperature"].to_pylist()) == {0.0, 1.0}


STALE = """
import os
if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
    from dagrpo_sglang_cpu.packed import PackedWeights
    PackedWeights.drop = lambda self: None
"""


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="SGLang packs weights on a CPU alone")
def test_a_server_that_goes_on_with_packed_copies_of_old_weights_is_refused_by_the_probe(
    initial: Path,
    weights: State,
    probe_of: Callable[[Rollout], Probe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No digest shows them. They cannot outlive a weight sync; here the server is started with what drops them taken out."""
    (tmp_path / "sitecustomize.py").write_text(STALE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    old = {name: tensor * 1.5 for name, tensor in weights.items()}
    params, probe = sglang.Config(start_timeout=240, request_timeout=120), probe_of(Rollout())
    log = tmp_path / "server.log"
    with open_sglang(initial, params, log, dtype="float32", deterministic=True, weights=StateTensors(old)) as engine:
        with pytest.raises(UserError, match="probed tokens"):
            probe.check(engine, 0)
        engine.load(StateTensors(weights), "new")
        WeightSyncCheck(Gates(), 7).check(engine, StateTensors(weights), 0, updated=False)
        with pytest.raises(UserError, match="probed tokens"):
            probe.check(engine, 1)
