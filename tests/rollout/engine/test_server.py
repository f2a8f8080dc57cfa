"""The real SGLang server."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hostile import NOT_IN_THE_FOLDER
from tests.listening import beyond_loopback, open_sockets
from tests.rollout.engine.pools import pool_over
from transformers import AutoModelForCausalLM

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.errors import UserError
from dagrpo.files import read_json, write_json
from dagrpo.params.runtime import Engine
from dagrpo.records import Completion, SamplingRequest, ScoringRequest
from dagrpo.rollout.engine.background import BackgroundLoop
from dagrpo.rollout.engine.client import ServerClient
from dagrpo.rollout.engine.errors import ServerError
from dagrpo.rollout.engine.open import open_engine
from dagrpo.rollout.engine.pool import ServerPool
from dagrpo.rollout.engine.servable import require_servable
from dagrpo.rollout.engine.server import SGLangServer, free_port
from dagrpo.rollout.engine.version import WeightVersion

LivingIn = Callable[[int], list[str]]
WaitUntil = Callable[[Callable[[], bool]], None]
STOP = 1  # of the tiny model


def batch(
    prompts: int = 32, samples: int = 8, max_new_tokens: int = 16, temperature: float = 1.0
) -> list[SamplingRequest]:
    rng = random.Random(prompts)
    return [
        SamplingRequest(
            input_ids=prompt, seed=8 * index + sample, temperature=temperature, top_p=1.0, top_k=-1,
            max_new_tokens=max_new_tokens,
        )
        for index, prompt in enumerate(
            [tuple(rng.randrange(2, 100) for _ in range(rng.randrange(8, 30))) for _ in range(prompts)]
        )
        for sample in range(samples)
    ]  # fmt: skip


@contextmanager
def a_busy_machine() -> Iterator[None]:
    """Every core taken, twice over."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


def trainer_logprobs(
    model: Path, requests: Sequence[SamplingRequest], completions: Sequence[Completion]
) -> list[float]:
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    logprobs: list[float] = []
    for request, completion in zip(requests, completions, strict=True):
        ids = torch.tensor([[*request.input_ids, *completion.token_ids]])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(request.input_ids) - 1 : -1]
        chosen = torch.tensor(completion.token_ids)[:, None]
        scaled = torch.log_softmax(logits / request.temperature, dim=-1)
        logprobs.extend(scaled.gather(1, chosen)[:, 0].tolist())
    return logprobs


@pytest.mark.server
def test_a_lockstep_batch_repeats_to_the_bit(pool: ServerPool, tiny_model: Path) -> None:
    requests = batch()
    first = pool.generate(requests, lockstep=True)
    assert pool.generate(requests, lockstep=True) == first, "again"
    pool.generate(batch(prompts=5, max_new_tokens=40), lockstep=False)
    assert pool.generate(requests, lockstep=True) == first, "after other requests"
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(requests, lockstep=True) == first, "after an update to the same weights"
    with a_busy_machine():
        assert pool.generate(requests, lockstep=True) == first, "on a busy machine"


@pytest.mark.server
def test_without_lockstep_the_tokens_are_nearly_the_same_and_come_in_order(pool: ServerPool) -> None:
    requests = batch()
    lockstep, sliced = (pool.generate(requests, lockstep=lockstep) for lockstep in (True, False))
    same = [one for one, other in zip(lockstep, sliced, strict=True) if one.token_ids == other.token_ids]
    assert len(same) >= 0.98 * len(requests)


@pytest.mark.server
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_transformers(pool: ServerPool, tiny_model: Path, temperature: float) -> None:
    requests = batch(prompts=16, samples=2, temperature=temperature)
    completions = pool.generate(requests, lockstep=True)
    sampled = [value for completion in completions for value in completion.logprobs]
    if temperature == 0:
        requests = batch(prompts=16, samples=2, temperature=1.0)
    torch.testing.assert_close(
        torch.tensor(sampled), torch.tensor(trainer_logprobs(tiny_model, requests, completions)), atol=1e-4, rtol=0
    )


@pytest.mark.server
def test_scores_are_the_logprobs_of_transformers_and_repeat_to_the_bit(pool: ServerPool, tiny_model: Path) -> None:
    """Several continuations of each prompt, and one sequence from its second token on, the vocabulary's last among them."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    rng = random.Random(1)
    requests = [
        ScoringRequest(
            token_ids=(*each.input_ids, *(rng.randrange(2, 100) for _ in range(rng.randrange(1, 12)))),
            first=len(each.input_ids),
        )
        for each in batch(prompts=8, samples=3)
    ]
    requests.append(ScoringRequest(token_ids=(5, policy.config.vocab_size - 1, 7), first=1))
    scores = pool.score(requests, lockstep=True)
    pool.generate(batch(prompts=5), lockstep=False)
    assert pool.score(requests, lockstep=True) == scores, "after other requests"
    for request, told in zip(requests, scores, strict=True):
        ids = torch.tensor([request.token_ids])
        with torch.no_grad():
            table = torch.log_softmax(policy(ids).logits[0, request.first - 1 : -1], dim=-1)
        expected = table.gather(1, ids[0, request.first :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(told), expected, atol=1e-4, rtol=0)


@pytest.mark.server
def test_logprobs_of_what_top_p_and_top_k_leave_are_those_of_transformers_over_the_support(
    pool: ServerPool, tiny_model: Path
) -> None:
    requests = [
        replace(each, top_p=0.5, top_k=12, temperature=0.7, support=True) for each in batch(prompts=8, samples=2)
    ]
    completions = pool.generate(requests, lockstep=True)
    assert pool.generate(requests, lockstep=True) == completions, "again"
    sizes = [len(ids) for completion in completions for ids in completion.support]
    assert 1 < max(sizes) <= 12
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for request, completion in zip(requests, completions, strict=True):
        with torch.no_grad():
            logits = policy(torch.tensor([[*request.input_ids, *completion.token_ids]])).logits[0]
        for place, (token, ids) in enumerate(zip(completion.token_ids, completion.support, strict=True)):
            scaled = logits[len(request.input_ids) - 1 + place] / 0.7
            left = torch.tensor(list(ids))
            likeliest = scaled.softmax(-1).sort(descending=True).values
            assert scaled.softmax(-1)[left].sum() == pytest.approx(float(likeliest[: len(ids)].sum()), abs=1e-5)
            assert likeliest[: len(ids) - 1].sum() < 0.5 + 1e-5
            assert len(ids) == 12 or likeliest[: len(ids)].sum() > 0.5 - 1e-5
            own = float(torch.log_softmax(scaled[left], -1)[ids.index(token)])
            assert completion.logprobs[place] == pytest.approx(own, abs=1e-4)


@pytest.mark.server
def test_a_completion_ends_with_the_stop_token_or_at_its_length(pool: ServerPool) -> None:
    completions = pool.generate(batch(max_new_tokens=60), lockstep=True)
    reasons = {"stop": 0, "length": 0}
    for completion in completions:
        reasons[completion.finish_reason] += 1
        assert STOP not in completion.token_ids[:-1]
        assert (completion.token_ids[-1] == STOP) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 60
    assert min(reasons.values()) > 10


@pytest.mark.server
def test_greedy_needs_no_seed_and_a_seed_decides_a_sample(pool: ServerPool) -> None:
    greedy = pool.generate(batch(prompts=4, samples=3, temperature=0.0), lockstep=True)
    sampled = pool.generate(batch(prompts=4, samples=3), lockstep=True)
    for first in range(0, 12, 3):
        assert len({completion.token_ids for completion in greedy[first : first + 3]}) == 1
        assert len({completion.token_ids for completion in sampled[first : first + 3]}) == 3


@pytest.mark.server
def test_other_weights_are_taken_over_and_named_in_the_answers(
    pool: ServerPool, tiny_model: Path, tmp_path: Path
) -> None:
    requests = batch(prompts=4)
    before = pool.generate(requests, lockstep=True)
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    weights = {name: tensor * 1.01 for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    pool.load(StateTensors(weights), "step_1")
    after = pool.generate(requests, lockstep=True)
    trained = torch.tensor(trainer_logprobs(tmp_path, requests, after))
    torch.testing.assert_close(
        torch.tensor([value for completion in after for value in completion.logprobs]), trained, atol=1e-4, rtol=0
    )
    assert after != before
    pool.load(HuggingFaceTensors(tiny_model), "first")
    assert pool.generate(requests, lockstep=True) == before


@pytest.mark.server
def test_a_folder_without_weights_is_refused_and_the_old_ones_stay(
    server: SGLangServer, pool: ServerPool, tmp_path: Path
) -> None:
    before = pool.generate(batch(prompts=2), lockstep=True)
    client = ServerClient(server.endpoint, 120)
    with BackgroundLoop() as loop, pytest.raises(ServerError, match="refused /update_weights_from_disk"):
        loop.run(client.load(tmp_path, WeightVersion(name="broken", sent="broken")))
    assert pool.generate(batch(prompts=2), lockstep=True) == before


@pytest.mark.server
def test_single_completions_are_nearly_those_of_a_batch(pool: ServerPool) -> None:
    requests = batch(prompts=8, samples=4)

    async def one_by_one() -> list[Completion]:
        return await asyncio.gather(*(pool.complete(each, session="one") for each in requests))

    assert asyncio.run(pool.complete(replace(requests[0], max_new_tokens=0), session="one")).token_ids == ()
    expected = pool.generate(requests, lockstep=True)
    same = [a for a, b in zip(expected, asyncio.run(one_by_one()), strict=True) if a.token_ids == b.token_ids]
    assert len(same) >= 0.98 * len(requests)


@pytest.mark.server
def test_a_prompt_that_does_not_fit_is_refused_with_its_length(pool: ServerPool) -> None:
    request = SamplingRequest(input_ids=(5,) * 300, seed=0, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=4)
    with pytest.raises(ServerError, match="300 tokens"):
        pool.generate([request], lockstep=True)


@pytest.mark.server
def test_the_api_key_is_needed_and_stands_on_no_command_line(server: SGLangServer, tiny_model: Path) -> None:
    stranger = replace(server.endpoint, api_key="wrong")
    with pool_over([stranger], tiny_model) as pool, pytest.raises(ServerError, match=r"[Uu]nauthorized"):
        pool.generate(batch(prompts=1), lockstep=False)
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert not any(server.api_key in part for process in family for part in process.cmdline())


@pytest.mark.server
def test_the_log_has_the_settings_and_not_the_api_key(server: SGLangServer, pool: ServerPool) -> None:
    pool.generate(batch(prompts=1), lockstep=True)
    log = server.process.log.read_text()
    assert "'api_key': '***'" in log
    assert server.api_key not in log


@pytest.mark.server
def test_a_server_that_has_sampled_listens_on_loopback_alone(server: SGLangServer, pool: ServerPool) -> None:
    pool.generate(batch(prompts=1), lockstep=True)
    assert any(server.address.rpartition(":")[2] in one for one in open_sockets(server.process.pid))
    assert beyond_loopback(server.process.pid) == []


@pytest.mark.server
def test_another_server_gives_the_same_bits_and_its_death_is_noticed_at_once(
    pool: ServerPool, tiny_model: Path, engine: Engine, tmp_path: Path, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    expected = pool.generate(batch(), lockstep=True)
    with (
        SGLangServer(tiny_model, engine, tmp_path / "server.log") as server,
        pool_over([server.endpoint], tiny_model) as other,
    ):
        assert [replace(c, weight_version="first") for c in other.generate(batch(), lockstep=True)] == expected
        group = server.process.pid
        scheduler = next(p for p in psutil.Process(group).children() if "scheduler" in p.name())
        killed: list[float] = []

        def kill() -> None:
            time.sleep(0.5)
            killed.append(time.monotonic())
            scheduler.send_signal(signal.SIGKILL)

        threading.Thread(target=kill).start()
        with pytest.raises(ServerError, match=r"died \(its process sglang::scheduler ended\).*server\.log"):
            other.generate(batch(samples=32, max_new_tokens=200), lockstep=True)
        assert time.monotonic() - killed[0] < 5
    wait_until(lambda: not living_in(group))


@pytest.mark.server
def test_a_parent_killed_while_its_server_runs_leaves_no_process(
    tiny_model: Path, tmp_path: Path, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    code = (
        "import sys; from pathlib import Path; from dagrpo.params.runtime import Engine\n"
        "from dagrpo.records import SamplingRequest; from dagrpo.rollout.engine.server import SGLangServer\n"
        "with SGLangServer(Path(sys.argv[1]), Engine(), Path(sys.argv[2])) as server:\n"
        "    print(server.process.pid, flush=True); import time; time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", code, str(tiny_model), str(tmp_path / "server.log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert sorted(name for name in living_in(group) if name.startswith("sglang")) == [
        "sglang::detokenizer", "sglang::scheduler",
    ]  # fmt: skip
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not living_in(group))


@pytest.mark.server
def test_a_server_that_dies_while_starting_is_one_sentence_with_the_reason(
    tiny_model: Path, engine: Engine, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    write_json(model / "config.json", read_json(model / "config.json") | {"architectures": ["Nonsense"]})
    log = tmp_path / "server.log"
    with pytest.raises(ServerError) as error, open_engine(model, engine, log, dtype="float32", deterministic=True):
        pass
    sentence = str(error.value)
    assert "died while it was starting" in sentence
    assert "Nonsense" in sentence
    assert str(log) in sentence
    assert "\n" not in sentence


def test_a_server_that_is_not_ready_in_time_is_killed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living_in: LivingIn, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr("dagrpo.rollout.engine.server.server_command", lambda *args, **kwargs: ["sleep", "100"])
    server = SGLangServer(tiny_model, Engine(start_timeout=1), tmp_path / "server.log")
    with pytest.raises(ServerError, match=r"after 1 s; it was still importing its packages: .*start_timeout"), server:
        pass
    wait_until(lambda: not living_in(server.process.pid))


def test_a_taken_port_and_no_free_port_are_errors(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"Port {port} of 127.0.0.1 is in use"),
            SGLangServer(tiny_model, Engine(), tmp_path / "server.log", port=port),
        ):
            pass

    class NoPorts(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket, "socket", NoPorts)
    with pytest.raises(ServerError, match=r"No port of 127\.0\.0\.1 is free"):
        free_port(None)


SCRIPTED_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health" or self.headers.get("Authorization") == "Bearer " + sys.argv[2]
        self.send_response(200 if known else 401); self.send_header("Content-Length", "0"); self.end_headers()
    do_POST = do_GET
HTTPServer.allow_reuse_address = False
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_another_server_took_in_between_is_left_to_it(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """Such as that of another stage, which answers /health as ours would, but has another key."""
    taken = free_port(None)
    other = subprocess.Popen([sys.executable, "-c", SCRIPTED_SERVER, str(taken), "another key"])
    wait_until(lambda: listens(taken))
    server = SGLangServer(tiny_model, Engine(start_timeout=60), tmp_path / "server.log")
    asked: list[int] = []

    def first_the_taken_one(wanted: int | None) -> int:
        asked.append(free_port(wanted) if asked else taken)
        return asked[-1]

    def command(model: Path, engine: Engine, port: int, *rest: object, **about: object) -> list[str]:
        return [sys.executable, "-c", SCRIPTED_SERVER, str(port), server.api_key]

    monkeypatch.setattr("dagrpo.rollout.engine.server.free_port", first_the_taken_one)
    monkeypatch.setattr("dagrpo.rollout.engine.server.server_command", command)
    with server:
        assert len(asked) == 2
        assert server.address == f"http://127.0.0.1:{asked[1]}"
        assert server.diagnose() is None
    assert other.poll() is None
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_an_incomplete_model_folder_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, missing: str, named: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / missing).unlink()
    with (
        pytest.raises(ServerError, match=f"{model} cannot be served, it has no {named}.*: run the stage"),
        open_engine(model, Engine(), tmp_path / "server.log", dtype="float32", deterministic=True),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


def test_a_missing_shard_is_named(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors").rename(model / shards["a"])
    write_json(model / "model.safetensors.index.json", {"weight_map": shards})
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors is missing, but .*index\.json names it"):
        require_servable(model)


@pytest.mark.parametrize("name", NOT_IN_THE_FOLDER, ids=lambda name: repr(name)[:20])
def test_an_index_that_names_other_peoples_files_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, name: object
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    index = json.dumps({"weight_map": {"w": "model.safetensors", "v": name}})
    (model / "model.safetensors.index.json").write_text(index)
    with (
        pytest.raises(UserError, match="which is not a safetensors file of its folder"),
        SGLangServer(model, Engine(), tmp_path / "server.log"),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


def test_every_server_has_an_api_key_of_its_own_that_cannot_be_taken_for_a_flag(tmp_path: Path) -> None:
    keys = {SGLangServer(tmp_path, Engine(), tmp_path / "log").api_key for _ in range(200)}
    assert len(keys) == 200
    assert all(key.isalnum() and len(key) == 64 for key in keys)
