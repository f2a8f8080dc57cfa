"""Training on several hosts: the bytes of one host, ends that all nodes share, and how SLURM or a person starts them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.engine import served
from tests.engine.serving import make_tiny_model
from tests.hosts import LAUNCH, SECONDS, Host, launch_of, launched, two_hosts, wait_for
from tests.trainer import runs

from dagrpo.checkpoints.compare import compare
from dagrpo.core.errors import UserError
from dagrpo.pipeline import nodes
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils import addresses, slurm
from dagrpo.utils.addresses import free_port
from dagrpo.utils.failures import MISTAKE
from dagrpo.utils.manifest import MANIFEST

SRUN = Path(__file__).with_name("srun.py")
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
    assert _files(tmp_path / "out") == _files(by_one_host)


@pytest.mark.nightly
def test_a_run_that_ends_with_one_of_its_hosts_resumes_with_the_same_bytes(
    hosts: tuple[Host, Host], inputs: tuple[Path, Path], by_one_host: Path, tmp_path: Path
) -> None:
    first, _ = launched(hosts, tmp_path, _command(inputs, tmp_path / "out", "wait"), SAVE_EVERY="1")
    for name in ("sampling", "state/step_00001/state.json"):
        wait_for(tmp_path / "out" / name)
    assert [host.listening() for host in hosts] == [{host.address} for host in hosts], "nothing listens elsewhere"
    hosts[1].kill()
    first.terminate()  # as `srun` does when a task has ended
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 128 + signal.SIGTERM, said
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
    (tmp_path / "servers").mkdir()
    command = ("--servers", "servers", "1", served.__file__, *models, "2", "there.json", *how)
    first, *others = [
        hosts[number % 2].python(tmp_path, *launch_of(hosts[0], number, 1), *command) for number in range(3)
    ]
    said, _ = first.communicate(timeout=SECONDS)
    assert (first.returncode, *(each.wait(60) for each in others)) == (0, 0, 0), said
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


TALKING = """
import os, signal, time
import torch
from dagrpo.pipeline.runner import _listen_to_signals
from dagrpo.utils.distributed import process_group
_listen_to_signals()
with process_group() as world:
    world.barrier()
    os.write(1, f"rank {world.rank}\\n".encode())
    if world.rank and os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()
    time.sleep(float(os.environ.get("SECONDS", "0")))
"""


def _start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "talk.py").write_text(TALKING)
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(runs.ROOT), *sys.path]),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(words, cwd=folder, env=variables | environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def _start_node(folder: Path, number: int, port: int, *more: str, **environment: str) -> subprocess.Popen[str]:
    place = ("--nodes", "2", "--node", str(number), "--address", f"127.0.0.1:{port}", *more)
    return _start(folder, sys.executable, *LAUNCH, *place, "1", "talk.py", **environment)


@pytest.mark.slow
def test_a_rank_that_dies_is_named_on_its_node_and_ends_the_ranks_of_others(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    first, second = (_start_node(tmp_path, number, port, DIES="yes") for number in (0, 1))
    assert "talk.py: rank 1 of 2 ended with SIGKILL" in second.communicate(timeout=100)[0]
    assert "TransientError: Another process of this training has ended" in first.communicate(timeout=100)[0]
    assert (first.returncode, second.returncode) == (1, 1)


@pytest.mark.slow
def test_a_node_that_does_not_come_ends_the_training_in_time(tmp_path: Path) -> None:
    first = _start_node(tmp_path, 0, free_port("127.0.0.1"), "--timeout", "2")
    said, _ = first.communicate(timeout=100)
    assert first.returncode == MISTAKE
    assert "node 0 has not met the others within 2 seconds (runtime.node_timeout): start all of them" in said


@pytest.mark.slow
@pytest.mark.parametrize("engines", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_srun_runs_a_task_on_each_node_until_all_have_ended_or_one_fails(
    engines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nodes, "_names_in_slurm", lambda count: ["n1", "n2", "n3"][:count])
    monkeypatch.setattr(slurm, "own_cores", lambda: 3)
    shutil.copy(SRUN, tmp_path / "srun")
    (tmp_path / "srun").chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SECONDS": str(30 * engines),
    }  # a node that serves has come
    runtime = Runtime.model_validate({"nodes": 2, "address": "127.0.0.1", "engine": {"nodes": engines}})
    with nodes.command_on_nodes(runtime, 1, ["talk.py"]) as command:
        said, _ = (process := _start(tmp_path, *command, **variables)).communicate(timeout=200)
        assert process.returncode == 0, said
        assert {"rank 0", "rank 1"} <= {*said.splitlines()}
        assert f"n1,n2{',n3' * engines}" in said
    assert not [*nodes.LAUNCHES.iterdir()]
    with nodes.command_on_nodes(runtime, 1, ["talk.py"]) as command:
        process = _start(tmp_path, *command, **variables, DIES="yes")
        assert process.wait(200) != 0


@pytest.mark.nightly
def test_outside_slurm_a_script_starts_the_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(slurm.JOB_ID, raising=False)
    runtime = Runtime.model_validate({"nodes": 2, "address": "127.0.0.1"})
    with nodes.command_on_nodes(runtime, 1, ["talk.py"]) as command:
        (script,) = nodes.LAUNCHES.glob("*.sh")
        assert f"run `sh {script} NODE` in this folder, with NODE from 1 to 1" in capsys.readouterr().err
        first, second = _start(tmp_path, *command), _start(tmp_path, "sh", str(script), "1")
        said = first.communicate(timeout=100)[0] + second.communicate(timeout=100)[0]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert not [*nodes.LAUNCHES.iterdir()]


@pytest.mark.nightly
def test_a_signal_to_all_nodes_ends_the_first_last(tmp_path: Path) -> None:
    """A task that fails would have `srun` kill the first one, which still saves its state."""
    port = free_port("127.0.0.1")
    both = [_start_node(tmp_path, number, port, SECONDS="60") for number in (0, 1)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("rank")
    for process in both:
        process.terminate()
    assert [process.wait(60) for process in both] == [128 + signal.SIGTERM, 0]


def _on_loopback(folder: Path, processes: int, script: str, *arguments: object) -> None:
    """Run a script on two nodes that are one machine."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port("127.0.0.1")
    words = [str(processes), script, *map(str, arguments)]
    place = ("--nodes", "2", "--address", f"127.0.0.1:{port}")
    both = [_start(folder, sys.executable, *LAUNCH, *place, "--node", str(number), *words) for number in (0, 1)]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
    finally:
        for process in both:
            process.kill()


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


def test_outside_slurm_the_first_node_names_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(slurm.JOB_ID, raising=False)
    with pytest.raises(UserError, match=r"takes 2 machines .*, but no address is named: set runtime\.address"):
        nodes._address(None, [], 2)
    with pytest.raises(UserError):
        addresses.require_address(None, 2)
    addresses.require_address("127.0.0.1", 2)
    addresses.require_address(None, 1)
    assert nodes._address("127.0.0.1:29500", [], 2) == "127.0.0.1:29500"
    assert nodes._address("127.0.0.1", [], 2) != "127.0.0.1:29500", "a free port"


def test_a_slurm_job_with_too_few_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slurm.JOB_ID, "14")
    monkeypatch.setattr(slurm, "nodes_of", lambda job: ["n1"])
    with pytest.raises(UserError, match=r"takes 2 machines .*, and SLURM job 14 has 1"):
        nodes._names_in_slurm(2)


@pytest.mark.parametrize(("here", "asked"), [("n1", "n2"), ("login", "n1")])
def test_in_slurm_the_address_is_the_first_nodes_in_the_network_of_the_second(
    here: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", here)
    monkeypatch.setattr(slurm, "address_of", lambda node: {asked: "127.0.0.1"}[node])
    assert nodes._address(None, ["n1", "n2"], 2).startswith("127.0.0.1:")


@pytest.mark.slow
def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    place = ("--nodes", "2", "--node", "0", "--address", "192.0.2.1:29500")
    first = _start(tmp_path, sys.executable, *LAUNCH, *place, "1", "talk.py")
    assert "192.0.2.1 is no address of this machine" in first.communicate(timeout=100)[0]
    assert first.returncode == MISTAKE
