"""Several servers that a stage starts itself: which GPU each has, and that a batch in parts is the same batch again."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.engine.batches import batch

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import StateTensors, total_bytes
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.servers import gpus_of, log_of
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.pipeline.stages import difficulty, sample, train
from dagrpo.trainer.checks.weight_sync import COMPARED, WeightSyncCheck
from dagrpo.trainer.config.checks import Gates
from dagrpo.utils.devices import VISIBLE

TWO = sglang.Config(replicas=2, max_total_tokens=4096, request_timeout=120)


TWO_DIVIDED = {"replicas": 2, "tensor_parallel": 2}


@pytest.mark.parametrize(
    ("given", "visible", "reserved", "expected"),
    [
        ({"replicas": 2}, "012", 0, ["0", "1"]),  # those of the policy, from the first on
        ({"replicas": 2, "own_gpus": True}, "012", 0, ["1", "2"]),  # the last ones
        ({"own_gpus": True}, "47", 0, ["7"]),
        ({"own_gpus": True}, "0123", 2, ["1"]),  # a reward model beside two servers of the policy
        ({}, "01", 0, [None]),  # what its stage sees
        ({"replicas": 2}, "", 0, [None, None]),
        (TWO_DIVIDED, "01234", 0, ["0,1", "2,3"]),
        (TWO_DIVIDED | {"own_gpus": True}, "01234", 0, ["1,2", "3,4"]),
        ({"tensor_parallel": 2}, "478", 0, ["4,7"]),
    ],
)
def test_servers_share_the_gpus_of_the_policy_or_have_the_last_ones(
    given: dict[str, Any], visible: str, reserved: int, expected: list[str | None]
) -> None:
    assert gpus_of(sglang.Config.model_validate(given), [*visible], reserved) == expected


@pytest.mark.parametrize(
    ("given", "visible", "reserved", "words"),
    [
        (TWO_DIVIDED, "012", 0, "replicas is 2 and tensor_parallel 2, which takes 4 GPUs, but 3 are visible here"),
        ({"own_gpus": True}, "0", 1, r"1 are visible here .*, of which other servers have 1 to themselves"),
    ],
)
def test_more_servers_than_gpus_are_refused(given: dict[str, Any], visible: str, reserved: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        gpus_of(sglang.Config.model_validate(given), [*visible], reserved)


def test_training_takes_gpus_for_its_processes_and_for_servers_that_share_none_of_them() -> None:
    def gpus(**engine: object) -> int:
        document = {"runtime": {"training": {"processes": 2}, "engine": engine}}
        return train.needs(parse(document).runtime).gpus

    assert [gpus(), gpus(replicas=2), gpus(replicas=3)] == [2, 2, 3]
    assert [gpus(own_gpus=True), gpus(replicas=2, own_gpus=True)] == [3, 4]
    assert [gpus(tensor_parallel=4), gpus(replicas=2, tensor_parallel=2, own_gpus=True)] == [4, 6]


def test_a_teacher_takes_the_gpus_of_the_policy_and_sampling_takes_those_of_the_engine() -> None:
    divided = {"tensor_parallel": 4}
    runtime = parse(
        {"runtime": {"engine": {"own_gpus": True, "replicas": 2, "tensor_parallel": 2}, "teacher": divided}}
    ).runtime
    assert [each.needs(runtime).gpus for each in (train, sample, difficulty)] == [8, 4, 4]


def test_every_server_has_a_log_of_its_own() -> None:
    names = [log_of(Path("logs/train.server.log"), number).name for number in range(3)]
    assert names == ["train.server.log", "train.2.server.log", "train.3.server.log"]


def test_a_server_is_told_which_gpu_is_its_own(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []

    class Started:
        def __init__(self, command: object, *, environment: dict[str, str], log: object, scratch: object) -> None:
            told.append(environment)

        def stop(self) -> None:
            pass

    monkeypatch.setattr("dagrpo.engine.sglang.server.WatchedProcess", Started)
    monkeypatch.setenv(VISIBLE, "")
    for gpus in (None, "GPU-77,GPU-78"):
        server = SGLangServer(tiny_model, sglang.Config(), tmp_path / "log", only_gpus=gpus)
        server.begin()
        server.stop()
    assert [environment[VISIBLE] for environment in told] == ["", "GPU-77,GPU-78"]


@pytest.mark.parametrize("given", [{"replicas": 2}, {"own_gpus": True}])
def test_servers_that_nobody_can_give_separate_gpus_are_refused_and_not_put_on_the_first(
    given: dict[str, object], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = sglang.Config.model_validate(given)
    (gpus,) = {*gpus_of(config, [])}
    with pytest.raises(
        UserError, match="neither CUDA_VISIBLE_DEVICES nor nvidia-smi nor the driver counts this machine's"
    ):
        SGLangServer(tiny_model, config, tmp_path / "log", only_gpus=gpus).begin()


@pytest.mark.nightly
@pytest.mark.server
def test_two_ranks_that_divide_a_model_give_the_same_bits_twice_and_hold_their_shares_of_new_weights(
    tiny_model: Path, tmp_path: Path
) -> None:
    """On a CPU with gloo: two processes of SGLang, and no socket of theirs beyond loopback."""
    requests, initial = batch(prompts=4, samples=4, max_new_tokens=12), HuggingFaceTensors(tiny_model)
    changed = StateTensors({name: initial.read(name) * 1.5 for name in initial.specs})
    everything, answers = Gates(digest_mebibytes=total_bytes(changed) // (1 << 20) + 1), []
    divided = sglang.Config(tensor_parallel=2, max_total_tokens=4096, request_timeout=120)
    for _ in range(2):
        with open_engine(tiny_model, divided, tmp_path / "log", dtype="float32", deterministic=True) as engine:
            answers.append(engine.generate(requests, lockstep=True))
            addresses = {
                each.laddr.ip
                for child in psutil.Process().children(recursive=True)
                for each in child.net_connections(kind="inet")
                if each.status == psutil.CONN_LISTEN
            }
            assert addresses <= {"127.0.0.1", "::1"}
            ((one, other),) = [server.ranks for server in engine.digests()]
            assert one.keys() == other.keys()
            gate = WeightSyncCheck(everything, 7)
            assert gate.check(engine, initial, 0, updated=False) == {COMPARED: len(one)}
            engine.load(changed, "changed")
            assert gate.check(engine, changed, 1, updated=True) == {COMPARED: len(one)}
            with pytest.raises(UserError, match="server 0 holds other weights than were synced"):
                gate.check(engine, initial, 2, updated=True)
    assert answers[0] == answers[1]
    alone = sglang.Config(max_total_tokens=4096, request_timeout=120)
    with open_engine(tiny_model, alone, tmp_path / "log", dtype="float32", deterministic=True) as engine:
        whole = engine.generate(requests, lockstep=True)
    assert [each.token_ids for each in answers[0]] == [each.token_ids for each in whole]
    for each, by_one in zip(answers[0], whole, strict=True):
        assert each.logprobs == pytest.approx(by_one.logprobs, abs=1e-5)


@pytest.mark.nightly
@pytest.mark.server
def test_two_servers_give_the_tokens_of_one_and_a_deterministic_run_ends_with_the_first_that_dies(
    pool: ServerPool, tiny_model: Path, tmp_path: Path
) -> None:
    requests = batch(prompts=4, samples=4, max_new_tokens=12)
    alone = pool.generate(requests, lockstep=True)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with (
        pytest.raises(ServerError, match="The SGLang server died"),
        open_engine(tiny_model, TWO, tmp_path / "train.server.log", dtype="float32", deterministic=True) as engine,
    ):
        together = engine.generate(requests, lockstep=True)
        assert engine.generate(requests, lockstep=True) == together
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]
        assert len(engine.digests()) == 2
        schedulers = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid not in before and child.name().startswith("sglang::sched")
        ]
        os.kill(schedulers[1].pid, signal.SIGKILL)
        for _ in range(100):
            engine.generate(requests, lockstep=True)
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not {pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"}
    assert (tmp_path / "train.2.server.log").is_file()
