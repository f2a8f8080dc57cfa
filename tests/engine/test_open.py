"""Opening an engine: whatever a server held before, it samples from the weights that were asked for."""

import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.conftest import Serve
from tests.engine.scripted import Echo
from tests.engine.serving import make_tiny_model

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.http import Endpoint
from dagrpo.engine.servers import MOST_OPEN_FILES, raise_open_files
from dagrpo.engine.sglang import connect
from dagrpo.engine.sglang.command import Serving, server_command, server_environment, write_settings
from dagrpo.engine.sglang.server import SGLangServer, free_port


def test_more_files_may_be_opened_up_to_what_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1] if before[1] != resource.RLIM_INFINITY else MOST_OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        raise_open_files()
        inherited = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True, check=True).stdout
        assert int(inherited) == min(hard, MOST_OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


REQUESTS = [
    SamplingRequest(input_ids=(7, 8, 9, 10 + n), seed=n, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=12)
    for n in range(8)
]


def elsewhere(*addresses: str, weights: Path | None) -> sglang.Config:
    return sglang.Config(
        servers=list(addresses), weights_folder=None if weights is None else str(weights), request_timeout=120
    )


def sum_of_norm(folder: Path) -> float:
    """A number that tells the weights of a folder."""
    return float(load_file(folder / "model.safetensors")["model.norm.weight"].sum())


def test_a_server_elsewhere_is_given_the_weights_of_whoever_samples_from_it(
    serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    seen: list[float] = []
    server = serve(Echo(look=lambda folder: seen.append(sum_of_norm(folder))))
    trained = make_tiny_model(tmp_path / "trained")
    weights = load_file(trained / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.full((128,), 2.0)}, trained / "model.safetensors")
    params = elsewhere(server.address, weights=tmp_path / "shared")
    versions = []
    for model in (tiny_model, trained, tiny_model):
        with open_engine(model, params, tmp_path / "log", dtype="float32", deterministic=False) as engine:
            (completion,) = engine.generate(REQUESTS[:1], lockstep=False)
            versions.append(completion.weight_version)
    assert seen == [128.0, 256.0, 128.0]
    assert versions == ["initial"] * 3
    assert not (tmp_path / "log").exists(), "no server is started"
    assert [path.suffix for path in (tmp_path / "shared").iterdir()] == [".lock"], "the weights are gone"


def test_given_weights_come_before_those_of_the_folder_which_have_the_type_that_the_engine_computes_in(
    serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    server = serve(Echo(look=lambda folder: seen.append(load_file(folder / "model.safetensors"))))
    params, log = elsewhere(server.address, weights=tmp_path / "shared"), tmp_path / "log"
    first, second = (StateTensors({"model.norm.weight": torch.full((128,), value)}) for value in (3.0, 4.0))
    with open_engine(
        tiny_model, params, log, dtype="float32", deterministic=False, weights=first, version="step_0"
    ) as engine:
        assert engine.generate(REQUESTS[:1], lockstep=False)[0].weight_version == "step_0"
        engine.load(second, "step_1")
        assert engine.generate(REQUESTS[:1], lockstep=False)[0].weight_version == "step_1"
    with open_engine(tiny_model, params, log, dtype="bfloat16", deterministic=False):
        assert [float(each["model.norm.weight"].sum()) for each in seen] == [3 * 128.0, 4 * 128.0, 128.0]
        assert {tensor.dtype for tensor in seen[-1].values()} == {torch.bfloat16}


@pytest.mark.nightly
@pytest.mark.server
def test_servers_with_as_many_threads_give_the_same_bits(tiny_model: Path, tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        params = sglang.Config(threads=2)
        with open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=True) as engine:
            answers.append(engine.generate(REQUESTS, lockstep=True))
    assert answers[0] == answers[1]


def test_weights_that_a_server_was_started_with_take_no_memory_afterwards(
    serve: Serve, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        endpoint = Endpoint(address=serve(Echo()).address)

    def start(
        _: ExitStack, params: sglang.Config, log: Path, make: Callable[[Path, str | None], SGLangServer]
    ) -> list[Started]:
        make(log, None)
        read.extend((tmp_path / "memory").glob("*/*.safetensors"))
        return [Started()]

    read: list[Path] = []
    monkeypatch.setattr(connect, "start_all", start)
    params = sglang.Config(weights_folder=str(tmp_path / "memory"))
    weights = StateTensors({"model.norm.weight": torch.full((128,), 3.0)})
    with open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=False, weights=weights):
        assert len(read) == 1
        assert not read[0].exists()


def test_a_server_elsewhere_without_a_folder_that_both_see_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    params = elsewhere("http://node7:30000", weights=None)
    sentence = "http://node7:30000, which cannot see this machine's memory: set runtime.engine.weights_folder"
    with (
        pytest.raises(UserError, match=sentence),
        open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=False),
    ):
        pass


def test_two_stages_take_turns_on_a_server_elsewhere(serve: Serve, tiny_model: Path, tmp_path: Path) -> None:
    server = serve()
    params = elsewhere(server.address, weights=tmp_path / "shared")
    events: list[str] = []

    def other_stage() -> None:
        with open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=False):
            events.append("other opened")

    with open_engine(tiny_model, params, tmp_path / "log", dtype="float32", deterministic=False) as engine:
        other = threading.Thread(target=other_stage)
        other.start()
        time.sleep(0.5)
        engine.generate(REQUESTS[:2], lockstep=False)
        events.append("first done")
    other.join(20)
    assert events == ["first done", "other opened"]


@pytest.fixture
def server_elsewhere(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """A server started by hand: in a folder of its own, with a mount namespace in which /dev/shm is another one."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("a mount namespace needs root")
    home = tmp_path / "elsewhere"
    home.mkdir()
    settings = write_settings(home, "by hand")
    port = free_port(None)
    serving = Serving(model=tiny_model, config=sglang.Config(), version="old")
    command = server_command(serving, port, settings, device="cpu")
    script = 'mount -t tmpfs -o size=2g none /dev/shm && exec "$@"'
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script, "sh", *command],
        cwd=home,
        env=server_environment(os.environ, home, device="cpu"),
        stdout=(home / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while not _is_healthy(address):
            assert process.poll() is None, (home / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.2)
        yield address
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            each.kill()
        process.wait()


def _is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.nightly
@pytest.mark.server
def test_a_real_server_that_sees_another_dev_shm_samples_from_what_it_is_told(
    server_elsewhere: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation of two checkpoints, one after the other, and a trainer's weight sync, on one server."""
    monkeypatch.setenv("SGLANG_API_KEY", "by hand")
    trained = make_tiny_model(tmp_path / "trained")
    base_weights = load_file(tiny_model / "model.safetensors")
    trained_weights = {name: tensor * 1.05 for name, tensor in base_weights.items()}
    save_file(trained_weights, trained / "model.safetensors")
    params = elsewhere(server_elsewhere, weights=tmp_path / "shared")
    tokens = []
    for model in (tiny_model, trained):
        with open_engine(model, params, tmp_path / "log", dtype="float32", deterministic=True) as engine:
            tokens.append([c.logprobs for c in engine.generate(REQUESTS, lockstep=True)])
    base, other = tokens
    assert base != other
    with open_engine(
        tiny_model, params, tmp_path / "log", dtype="float32", deterministic=True, weights=StateTensors(base_weights)
    ) as engine:
        assert [c.logprobs for c in engine.generate(REQUESTS, lockstep=True)] == base
        engine.load(StateTensors(trained_weights), "step_1")
        completions = engine.generate(REQUESTS, lockstep=True)
    assert [c.logprobs for c in completions] == other
    assert {c.weight_version for c in completions} == {"step_1"}
