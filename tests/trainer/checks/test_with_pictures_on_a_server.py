"""The gates on the real server with a model that takes pictures: every tensor is compared, and a stale picture is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.trainer import runs, vision
from tests.trainer.checks.probes import probe_on

from dagrpo.checkpoints.gather import GatheredWeights
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.engine import sglang
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.connect import open_sglang
from dagrpo.engine.sglang.digests import counterparts
from dagrpo.models.config import Fresh, Model
from dagrpo.models.make import make_model
from dagrpo.rollout.config import Rollout
from dagrpo.trainer.checks.logprob_agreement import PROBED_LARGEST, PROBED_OUTSIDE, Probe
from dagrpo.trainer.checks.weight_sync import COMPARED, WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.trainer.model.fsdp import load_policy
from dagrpo.trainer.model.policy import Policy
from dagrpo.trainer.model.vision_tower import tower_module
from dagrpo.utils.distributed import single_process

pytestmark = [pytest.mark.server, pytest.mark.nightly]
State = dict[str, torch.Tensor]
TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14}


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model") / request.param
    make_model(folder, Model(fresh=Fresh.model_validate({"vision": TOWER | {"family": request.param}})))
    return folder


@pytest.fixture(scope="module")
def weights(model: Path) -> State:
    tensors = open_tensors(model)
    return {name: tensors.read(name).clone() for name in tensors.specs}


@pytest.fixture(scope="module")
def engine(model: Path, weights: State, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    """A server that keeps what its vision tower makes of pictures, as it must not where the tower is trained."""
    log = tmp_path_factory.mktemp("logs") / "server.log"
    params = sglang.Config(start_timeout=400, request_timeout=120)
    opened = open_sglang(
        model, params, log, dtype="float32", deterministic=False, weights=StateTensors(weights), keep_pictures=True
    )
    with opened as pool:
        yield pool


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    return load_policy(model, single_process())


@pytest.fixture
def probe(model: Path, policy: Policy, tmp_path: Path) -> Probe:
    """Four questions, each with a picture."""
    rows = [runs.example_with_pictures(number, vision.picture(number, 56, 84)) for number in range(4)]
    return probe_on(model, policy, rows, tmp_path / "state", Rollout())


def test_every_tensor_of_the_tower_and_of_the_language_model_is_compared(engine: ServerPool, weights: State) -> None:
    ((held,),) = [server.ranks for server in engine.digests()]
    known = counterparts([*held], [*weights])
    assert {part for parts in known.values() for part in parts} == weights.keys()
    assert {name for name in held if name not in known} <= {"model.layers.0.self_attn.rotary_emb.axis_map"}
    figures = WeightSyncCheck(Gates(), 7).check(engine, StateTensors(weights), 0, updated=False)
    assert figures == {COMPARED: len(known)}


def test_a_probe_with_pictures_agrees_to_rounding(engine: ServerPool, probe: Probe) -> None:
    figures = probe.check(engine, 0)
    assert figures[PROBED_OUTSIDE] == 0
    assert figures[PROBED_LARGEST] < 1e-4


def _with_another_tower(policy: Policy) -> State:
    """All weights of the policy, after its tower has moved."""
    module = tower_module(policy.model)
    assert module is not None
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.3)
    with GatheredWeights(policy.model, torch.float32, single_process()).reading() as tensors:
        return {name: tensors.read(name).clone() for name in tensors.specs}


def test_pictures_that_a_server_has_seen_with_another_tower_are_found_by_the_probe(
    engine: ServerPool, probe: Probe, policy: Policy
) -> None:
    """The digests cannot find it: the weights are the new ones."""
    probe.check(engine, 0)
    weights = StateTensors(_with_another_tower(policy))
    engine.load(weights, "moved")
    WeightSyncCheck(Gates(), 7).check(engine, weights, 1, updated=True)
    with pytest.raises(UserError, match=r"before step 2: of .* probed tokens"):
        probe.check(engine, 1)
