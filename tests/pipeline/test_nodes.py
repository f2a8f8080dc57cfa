"""Training on several hosts: the bytes of one host, and an end in bounded time when one is gone."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.engine import served
from tests.engine.serving import make_tiny_model
from tests.hosts import JOIN, JOINED, LAUNCH, PATIENCE, SECONDS, Host, launched, two_hosts, wait_for
from tests.trainer import runs
from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dagrpo.checkpoints.compare import compare
from dagrpo.core.errors import UserError
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.nodes import DESCRIPTION
from dagrpo.pipeline import launch, nodes, supervisor
from dagrpo.pipeline.stages.train import STAGE
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils import addresses, slurm
from dagrpo.utils.failures import MISTAKE, TRANSIENT
from dagrpo.utils.files import write_json
from dagrpo.utils.manifest import MANIFEST

STEPS = 4


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as both:
        yield both


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return runs.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def by_one_host(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run by two processes of one host."""
    folder = tmp_path_factory.mktemp("one_host")
    runs.launch(2, runs.__file__, *inputs, folder / "out", STEPS)
    return folder / "out"


def _command(inputs: tuple[Path, Path], out: Path, *more: str) -> list[str]:
    return [runs.__file__, *map(str, inputs), str(out), str(STEPS), *more]


def _files(out: Path) -> dict[str, bytes]:
    return {
        name: (out / name).read_bytes() for name in (f"policy/{MANIFEST}", "metrics.parquet", f"rollouts/{MANIFEST}")
    }


@pytest.mark.nightly
def test_two_hosts_leave_the_bytes_of_one_host_with_as_many_processes(
    hosts: tuple[Host, Host], inputs: tuple[Path, Path], by_one_host: Path, tmp_path: Path
) -> None:
    first, second = launched(hosts, tmp_path, _command(inputs, tmp_path / "out"))
    said, _ = first.communicate(timeout=SECONDS)
    assert (first.returncode, second.wait(SECONDS)) == (0, 0), said
    assert "run `dagrpo join 1` on them" in said
    assert _files(tmp_path / "out") == _files(by_one_host)
    assert not [*nodes.LAUNCHES.glob("*")]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "cut_off"])
def test_a_host_that_is_gone_ends_the_other_with_a_sentence_and_the_run_resumes_with_the_same_bytes(
    how: str, hosts: tuple[Host, Host], inputs: tuple[Path, Path], by_one_host: Path, tmp_path: Path
) -> None:
    first, second = launched(hosts, tmp_path, _command(inputs, tmp_path / "out", "wait"), SAVE_EVERY="1")
    for name in ("sampling", "state/step_00001/state.json"):
        wait_for(tmp_path / "out" / name)
    assert [host.listening() for host in hosts] == [{host.address} for host in hosts], "nothing listens elsewhere"
    began = time.monotonic()
    getattr(hosts[1], how)()
    said, _ = first.communicate(timeout=SECONDS)
    assert time.monotonic() - began < 2 * nodes.SECONDS_OF_SILENCE
    assert first.returncode == 1
    assert said.splitlines()[-1] == "node 1 (b) has ended, or cannot be reached."
    if how == "cut_off":
        assert second.wait(SECONDS) == 1
        link = ("link", "set", hosts[1].interface, "up")
        subprocess.run(("ip", "-n", hosts[1].namespace, *link), check=True)
    again = launched(hosts, tmp_path, _command(inputs, tmp_path / "out"))
    said, _ = again[0].communicate(timeout=SECONDS)
    assert again[0].returncode == 0, said
    assert "Step 1 of 4 is finished" in said
    assert _files(tmp_path / "out") == _files(by_one_host)


@pytest.mark.nightly
@pytest.mark.parametrize("how", [(), ("distributed",), ("divided",), ("divided", "distributed")])
def test_servers_on_hosts_of_their_own_sample_the_bytes_of_servers_beside_the_trainer(
    how: tuple[str, ...], hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    model, other = make_tiny_model(tmp_path / "model"), tmp_path / "other"
    shutil.copytree(model, other)
    weights = {name: 1.1 * tensor for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    models = [str(model), str(other)]
    here = hosts[0].python(
        tmp_path, served.__file__, *models, "0", "here.json", *(each for each in how if each == "divided")
    )
    said, _ = here.communicate(timeout=SECONDS)
    assert here.returncode == 0, said
    (tmp_path / ".state").mkdir()
    place = ("--nodes", "1+2", hosts[0].address, str(PATIENCE))
    first = hosts[0].python(tmp_path, *LAUNCH, *place, "1", served.__file__, *models, "2", "there.json", *how)
    others = [hosts[number % 2].python(tmp_path, "-c", JOINED, str(number)) for number in (1, 2)]
    said, _ = first.communicate(timeout=SECONDS)
    assert (first.returncode, *(each.wait(60) for each in others)) == (0, 0, 0), said
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


@pytest.mark.nightly
def test_a_host_that_does_not_come_is_named_in_time(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    place = ("--nodes", "2", hosts[0].address, "5")
    first = hosts[0].python(tmp_path, *LAUNCH, *place, "1", "nothing.py")
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 65
    assert "node 1 has not joined within 5 seconds (runtime.node_timeout)" in said


@pytest.mark.nightly
def test_a_host_with_another_disk_is_named(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first = hosts[0].python(tmp_path, *LAUNCH, "--nodes", "2", hosts[0].address, "100", "1", "nothing.py")
    folder = tmp_path / nodes.LAUNCHES
    while not (notes := [*folder.glob("*.json")] if folder.is_dir() else []):
        time.sleep(0.1)
    described = nodes.read_launch(notes[0])
    assert described is not None
    (tmp_path / "other").mkdir()
    place = f"{described.address}:{described.port}"
    hosts[1].python(tmp_path / "other", *LAUNCH, "--join", str(notes[0].relative_to(tmp_path)), place, "1")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 65
    assert "node 1 (b) does not see .state/launches/" in said
    assert "on one file system" in said


def _wait_for_end(link: nodes.Link) -> nodes.End:
    deadline = time.monotonic() + 20
    while link.end is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return link.end


@pytest.fixture
def launch_of_two(monkeypatch: pytest.MonkeyPatch) -> nodes.Launch:
    monkeypatch.setattr(nodes, "SECONDS_BETWEEN_SIGNS", 0.05)
    return nodes.Launch(**(asdict(nodes.UNSEEN) | {"nodes": 2}))


def test_two_machines_of_one_number_end_the_training(launch_of_two: nodes.Launch) -> None:
    store = HashStore()
    links = [nodes.Link(store, launch_of_two, number) for number in (0, 1, 1)]
    assert _wait_for_end(links[0]).sentence == "Two machines have joined as node 1: give each a number of its own."
    for link in links:
        link.close()


@pytest.mark.parametrize("word", ['{"code": 0}', '{"code": 256}', "no JSON"])
def test_a_word_of_a_stranger_never_ends_a_training_well(word: str, launch_of_two: nodes.Launch) -> None:
    store = HashStore()
    link = nodes.Link(store, launch_of_two, 0)
    store.set("end", word)
    assert _wait_for_end(link).code == 1
    link.close()


BROKEN_ENGINE = """
from dagrpo.engine import Capabilities, Engine
from dagrpo.engine.config import EngineConfig
from dagrpo.engine.errors import *

def start(*arguments, **options):
    raise {}("The port is taken.")

ENGINE = Engine(config=EngineConfig, capabilities=Capabilities(), open=None, start=start)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        ("ServerError", MISTAKE, "The port is taken."),
        ("ServerAway", TRANSIENT, "The port is taken."),
        ("RuntimeError", 1, "its servers have ended: their logs are beside that of the stage."),
    ],
)
def test_servers_that_cannot_start_end_all_nodes_with_their_reason_and_exit_code(
    error: str, code: int, reason: str, launch_of_two: nodes.Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_engine.py").write_text(BROKEN_ENGINE.format(error))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = EngineConfig.model_validate({"name": "broken_engine:ENGINE"}).model_dump()
    write_json(tmp_path / DESCRIPTION, {"config": config, "log": str(tmp_path / "log"), "options": {}})
    store, both = HashStore(), replace(launch_of_two, engines=1)
    first, own = (nodes.Link(store, both, number) for number in (0, 1))
    assert launch._serve(own, tmp_path, "127.0.0.1", []) == code
    sentence = f"node 1 ({socket.gethostname()}): {reason}"
    assert _wait_for_end(first) == nodes.End(code=code, sentence=sentence, is_of_servers=True)
    for link in (first, own):
        link.close()


@pytest.mark.parametrize(
    ("word", "said", "code"),
    [
        (nodes.End(code=1, sentence="process 1 of 2 on node 1 ended"), "", TRANSIENT),  # for want of rank 0
        (nodes.End(code=MISTAKE, sentence="node 1: no port.", is_of_servers=True), "node 1: no port.\n", MISTAKE),
        (None, "", TRANSIENT),
    ],
)
def test_what_rank_0_says_counts_unless_another_node_was_lost_or_its_servers_were(
    word: nodes.End | None,
    said: str,
    code: int,
    launch_of_two: nodes.Launch,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    failed = ProcessFailure(local_rank=0, pid=1, exitcode=TRANSIENT, error_file="")
    store = HashStore()
    first, other = (nodes.Link(store, launch_of_two, number) for number in (0, 1))

    def ran(*_: object) -> launch.Outcome:
        if word:
            other.say_end(word)
            other.close()  # and is silent
        return launch.Outcome(failures={0: failed})

    monkeypatch.setattr(launch, "_run", ran)
    for module in (nodes, launch):
        monkeypatch.setattr(module, "SECONDS_OF_SILENCE", 0.5)
    assert launch._run_linked(first, None, "lo", []) == code
    assert capfd.readouterr().err == said
    for link in (first, other):
        link.close()


@pytest.mark.parametrize("fails_here", [True, False])
def test_of_three_nodes_the_one_that_is_lost_is_named_not_those_whose_processes_fail_for_want_of_it(
    fails_here: bool, launch_of_two: nodes.Launch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store, of_three = HashStore(), replace(launch_of_two, nodes=3)
    first, other = (nodes.Link(store, of_three, number) for number in (0, 1))
    word = nodes.End(code=TRANSIENT, sentence="process 1 of 3 on node 1 ended")
    failed = ProcessFailure(local_rank=0, pid=1, exitcode=TRANSIENT, error_file="")

    def ran(*_: object) -> launch.Outcome:
        other.say_end(word)
        other.close()
        return launch.Outcome(failures={0: failed}) if fails_here else launch.Outcome(failures={}, ended_by=word)

    store.set("name/2", "c")
    store.add("sign/2", 1)  # its last
    while not first.are_all_there:
        time.sleep(0.01)
    monkeypatch.setattr(launch, "_run", ran)
    for module in (nodes, launch):
        monkeypatch.setattr(module, "SECONDS_OF_SILENCE", 0.5)
    assert launch._run_linked(first, None, "lo", []) == 1
    assert capfd.readouterr().err == "node 2 (c) has ended, or cannot be reached.\n"
    for link in (first, other):
        link.close()


def test_a_machine_with_other_software_is_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = nodes.Launch(**(asdict(nodes.UNSEEN) | {"software": nodes.own_software()}))
    assert launch._difference(described, tmp_path) is None
    monkeypatch.setattr(launch, "own_software", lambda: "dagrpo 1234, torch 2.0")
    assert launch._difference(described, tmp_path) == (
        f"has dagrpo 1234, torch 2.0; the first node has {described.software}: use the same environment on all nodes."
    )


def _on_loopback(folder: Path, processes: int, script: str, *arguments: object) -> None:
    """Run a script on two nodes that are one machine."""
    (folder / ".state").mkdir(parents=True)
    own = [sys.executable, *LAUNCH, "--nodes", "2", "127.0.0.1", "60", str(processes), script, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(runs.ROOT), "OMP_NUM_THREADS": "1"}
    first, second = (
        subprocess.Popen(command, cwd=folder, env=environment) for command in (own, [sys.executable, *JOIN])
    )
    try:
        assert (first.wait(SECONDS), second.wait(SECONDS)) == (0, 0)
    finally:
        first.kill()
        second.kill()


@pytest.mark.nightly
def test_a_copy_on_each_node_trains_the_policy_that_all_share(tmp_path: Path) -> None:
    from tests.trainer import updates

    initial, _ = runs.make_inputs(tmp_path)
    for name, more in (("all", ()), ("each", ("--copies", "2"))):
        _on_loopback(tmp_path / name, 2, updates.__file__, initial, tmp_path / name / "out", 0, 3, 0, *more)
    policies = [tmp_path / name / "out" / "policy" for name in ("all", "each")]
    assert all(each.largest is not None and each.largest < 2e-4 for each in compare(*policies).differences)
    assert max(each.largest or 0.0 for each in compare(initial, policies[1]).differences) > 1e-2
    resumed = tmp_path / "resumed"
    _on_loopback(resumed, 2, updates.__file__, initial, resumed / "out", 0, 1, 0, "--copies", "2")
    _on_loopback(resumed / "again", 2, updates.__file__, initial, resumed / "out", 1, 3, 0, "--copies", "2")
    assert (resumed / "out" / "policy" / MANIFEST).read_bytes() == (policies[1] / MANIFEST).read_bytes()


@pytest.mark.parametrize(
    ("runtime", "place"),
    [
        ({}, ()),
        ({"nodes": 2}, ("--nodes", "2+0", "auto", "300.0")),
        ({"engine": {"nodes": 2}, "address": "10.0.0.1"}, ("--nodes", "1+2", "10.0.0.1", "300.0")),
    ],
)
def test_the_launcher_is_told_how_many_nodes_train_and_serve(runtime: dict[str, Any], place: tuple[str, ...]) -> None:
    given = Runtime.model_validate(runtime)
    assert supervisor._place(given, STAGE.nodes(given)) == place


def test_outside_slurm_the_first_node_names_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(slurm.JOB_ID, raising=False)
    with pytest.raises(UserError, match=r"takes 2 machines .*, but no address is named: set runtime\.address"):
        nodes.place_of_the_first(None, 2)
    with pytest.raises(UserError, match="no address is named"):
        addresses.require_address(None, 2)
    addresses.require_address("127.0.0.1", 2)
    addresses.require_address(None, 1)
    assert nodes.place_of_the_first("127.0.0.1:29500", 2) == ("127.0.0.1", 29500, [])


def test_a_slurm_job_with_too_few_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slurm.JOB_ID, "14")
    monkeypatch.setattr(slurm, "nodes_of", lambda job: ["n1"])
    with pytest.raises(
        UserError, match=r"takes 2 machines .*, and SLURM job 14 has 1: submit it through profiles/slurm"
    ):
        nodes.place_of_the_first(None, 2)


def test_in_slurm_the_address_is_the_one_towards_the_second_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slurm.JOB_ID, "14")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(slurm, "nodes_of", lambda job: ["n1", "n2"])
    monkeypatch.setattr(slurm, "address_of", lambda node: {"n2": "127.0.0.1"}[node])
    assert nodes.place_of_the_first(None, 2) == ("127.0.0.1", 0, ["n2"])


def test_an_address_of_another_machine_is_refused() -> None:
    with (
        pytest.raises(
            UserError, match=r"192\.0\.2\.1:0 cannot be opened .*set runtime\.address to an address of the first node"
        ),
        nodes.first_node(nodes.Launch(**(asdict(nodes.UNSEEN) | {"address": "192.0.2.1"}))),
    ):
        pass
