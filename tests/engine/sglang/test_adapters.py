"""How an adapter is handed over to a server, by one that answers as a script says: in which order, by which name, and what is refused."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.conftest import Serve
from tests.engine.pools import pool_over
from tests.engine.scripted import reply, scores

from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.errors import UserError
from dagrpo.core.types import SamplingRequest, ScoringRequest
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import AdapterForm, new_version
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sessions import SLICE
from dagrpo.engine.sglang.command import adapter_flags
from dagrpo.engine.sglang.digests import SGLangWeights
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder

FORM = AdapterForm(rank=2, alpha=6, target_modules=("o_proj",))
NAME = "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"
REQUEST = SamplingRequest(input_ids=(7, 8), seed=1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=1)


class Serving:
    """Keeps adapters by name, and completes every prompt by its last token with those that requests name."""

    def __init__(self, *left: str) -> None:
        self.loaded = dict.fromkeys(left, "")
        self.version = "default"
        self.seen: list[tuple[dict[str, Any], dict[str, torch.Tensor]]] = []
        self.checksums: dict[str, str] = {}

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/load_lora_adapter":
            folder = Path(body["lora_path"])
            self.seen.append(
                (
                    json.loads((folder / "adapter_config.json").read_text()),
                    load_file(folder / "adapter_model.safetensors"),
                )
            )
            self.loaded[body["lora_name"]] = body["lora_path"]
        if path == "/unload_lora_adapter":
            del self.loaded[body["lora_name"]]
        if path in ("/load_lora_adapter", "/unload_lora_adapter"):
            return 200, {"success": True, "loaded_adapters": self.loaded}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/weights_checker":
            place = {"tp_rank": 0, "tp_size": 1, "dp_size": 1, "pp_size": 1}
            return 200, {"ranks": [{"checksums": self.checksums, "parallelism_info": [place]}]}
        if path != "/generate":
            return 200, {"success": True}
        if set(body.get("lora_path", [None])) != {*self.loaded}:
            (name, *_) = body.get("lora_path", ["none"])
            return 400, {"error": {"message": f"Got LoRA adapter that has never been loaded: {name}\nAll"}}
        if "logprob_start_len" in body and body["logprob_start_len"] != -1:
            return 200, scores(body, self.version)
        return 200, [reply(prompt[-1], self.version) for prompt in body["input_ids"]]


@contextmanager
def pool_at(
    address: str | Sequence[str], folder: Path, *, serves_adapters: bool = True, comes_back: bool = False
) -> Iterator[ServerPool]:
    (folder / "like").mkdir(exist_ok=True)
    addresses = [address] if isinstance(address, str) else address
    endpoints = [Endpoint(address=each, comes_back=comes_back) for each in addresses]
    form: dict[str, Any] = {"adapters": FORM} if serves_adapters else {}
    with pool_over(endpoints, folder / "like", folder / "weights", 5, **form) as pool:
        yield pool


def test_a_version_that_somebody_has_removed_is_not_missed_and_a_folder_of_weights_that_has_gone_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "like").mkdir()
    with WeightsFolder(tmp_path / "like", tmp_path / "weights") as parent:
        folders = AdapterFolders(FORM, parent)
        shutil.rmtree(folders.write(_adapter(1.0), new_version("step_1")))
        second = folders.write(_adapter(2.0), new_version("step_2"))
        shutil.rmtree(second.parent)
        with pytest.raises(UserError, match="has gone while this run uses it: start again"):
            folders.write(_adapter(2.0), new_version("step_3"))


def _adapter(value: float) -> StateTensors:
    return StateTensors({NAME: torch.full((2, 4), value)})


def test_each_version_is_loaded_by_a_name_of_its_own_before_the_one_before_goes_and_the_cache_is_emptied(
    serve: Serve, tmp_path: Path
) -> None:
    script = Serving("left by somebody else")
    server = serve(script)
    folders: list[list[Path]] = []
    with pool_at(server.address, tmp_path) as pool:
        for step in range(2):
            pool.load(_adapter(step), f"step_{step}")
            folders.append([*tmp_path.glob("weights/*/step_*")])
    weight_sync = ["/load_lora_adapter", "/unload_lora_adapter", "/update_weight_version", "/flush_cache?timeout=10.0"]
    assert server.paths == 2 * weight_sync
    names = [body["lora_name"] for path, body in server.asked if path == "/load_lora_adapter"]
    assert [name.partition("-")[0] for name in names] == ["step_0", "step_1"]
    assert [body["lora_name"] for path, body in server.asked if path == "/unload_lora_adapter"] == [
        "left by somebody else",
        names[0],
    ]
    assert [[folder.name for folder in there] for there in folders] == [names[:1], names[1:]], "one version at a time"
    assert [(config["r"], config["lora_alpha"], config["target_modules"]) for config, _ in script.seen] == [
        (2, 6, ["o_proj"])
    ] * 2
    assert [set(tensors[NAME].flatten().tolist()) for _, tensors in script.seen] == [{0.0}, {1.0}]
    assert not [*tmp_path.glob("weights/*")]


def test_every_request_names_the_adapter_and_prompts_that_are_read_first_do_too(serve: Serve, tmp_path: Path) -> None:
    server = serve(Serving())
    with pool_at(server.address, tmp_path) as pool:
        pool.load(_adapter(0), "step_0")
        assert [each.weight_version for each in pool.generate([REQUEST, REQUEST], lockstep=True)] == ["step_0"] * 2
        asked = ScoringRequest(token_ids=(7, 8, 9), first=2)
        assert len(pool.score([asked], lockstep=True)) == 1
    (name,) = {body["lora_name"] for path, body in server.asked if path == "/load_lora_adapter"}
    named = [(len(body["input_ids"]), body["lora_path"]) for path, body in server.asked if path == "/generate"]
    assert named == [(1, [name]), (2, [name, name]), (1, [name])]


def test_an_answer_that_comes_when_somebody_else_has_loaded_weights_is_refused(serve: Serve, tmp_path: Path) -> None:
    script = Serving()
    with pool_at(serve(script).address, tmp_path) as pool:
        pool.load(_adapter(0), "step_0")
        script.version = "theirs"
        with pytest.raises(ServerError, match=r"answered with weights \['theirs'\] instead of 'step_0-"):
            pool.generate([REQUEST], lockstep=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda pool: pool.load(_adapter(1), "step_1"),
        lambda pool: pool.generate([REQUEST], lockstep=True),
        lambda pool: pool.score([ScoringRequest(token_ids=(5, 7), first=1)], lockstep=True),
    ],
    ids=["load", "generate", "score"],
)
def test_a_server_that_was_started_again_unseen_starts_the_stage_again(
    ask: Callable[[ServerPool], object], serve: Serve, tmp_path: Path
) -> None:
    script = Serving()
    with pool_at(serve(script).address, tmp_path) as pool:
        pool.load(_adapter(0), "step_0")
        script.loaded.clear()
        with pytest.raises(ServerAway, match=r"has lost the adapter step_0-.*: it was started again"):
            ask(pool)


def test_a_server_of_a_node_that_was_started_again_gets_the_next_adapter_before_its_next_request(
    serve: Serve, tmp_path: Path
) -> None:
    scripts = Serving(), Serving()
    with pool_at([serve(each).address for each in scripts], tmp_path, comes_back=True) as pool:
        pool.load(_adapter(0), "step_0")
        scripts[1].loaded.clear()
        requests = [REQUEST] * 2 * SLICE
        assert {each.weight_version for each in pool.generate(requests, lockstep=False)} == {"step_0"}
        assert not scripts[1].loaded
        pool.load(_adapter(1), "step_1")
        scripts[0].loaded.clear()  # so that only the other one can answer
        assert {each.weight_version for each in pool.generate(requests, lockstep=False)} == {"step_1"}


def test_a_server_elsewhere_that_was_started_again_perhaps_with_other_weights_stays_away(
    serve: Serve, tmp_path: Path
) -> None:
    scripts = Serving(), Serving()
    servers = [serve(each) for each in scripts]
    with pool_at([each.address for each in servers], tmp_path) as pool:
        for step in (0, 1, 2):
            pool.load(_adapter(step), f"step_{step}")
            scripts[1].loaded.clear()
        completions = pool.generate([REQUEST] * 2 * SLICE, lockstep=False)
        assert {each.weight_version for each in completions} == {"step_2"}
    assert ["/generate" in server.paths for server in servers] == [True, False]


REFUSAL = {"rid": None, "success": False, "error_message": "LoRA is not enabled.", "loaded_adapters": None}


NO_ANSWER = r"did not answer /load_lora_adapter as SGLang does"


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        *((200, {"loaded_adapters": names}, NO_ANSWER) for names in (None, "step")),
        (200, [], NO_ANSWER),
        (200, {"success": True}, NO_ANSWER),
        (400, REFUSAL, r"refused /load_lora_adapter \(400\): LoRA is not enabled\."),
        (200, {"loaded_adapters": {"other": ""}}, r"holds the adapters \['other'\] instead of step_0-"),
    ],
)
def test_a_server_that_does_not_say_that_it_holds_the_adapter_alone_is_refused(
    status: int, answer: Any, words: str, serve: Serve, tmp_path: Path
) -> None:
    server = serve(lambda path, body: (status, answer))
    with pool_at(server.address, tmp_path) as pool, pytest.raises(ServerError, match=words):
        pool.load(_adapter(0), "step_0")


def test_digests_of_the_version_that_was_handed_over_are_reported_and_of_any_other_one_refused(
    serve: Serve, tmp_path: Path
) -> None:
    script = Serving()
    address = serve(script).address
    with pool_at(address, tmp_path) as pool:
        pool.load(_adapter(0), "step_0")
        (name,) = script.loaded
        script.checksums = {f"{name}:{NAME}": "1", "model.norm.weight": "2"}
        assert pool.digests() == [SGLangWeights(({NAME: "1", "model.norm.weight": "2"},))]
        pool.load(_adapter(1), "step_1")
        with pytest.raises(
            ServerError, match=rf"holds {name}:base_model.* a tensor of an adapter that this run has not loaded"
        ):
            pool.digests()
    with pool_at(address, tmp_path, serves_adapters=False) as pool:  # beside what an earlier run has left
        assert pool.digests() == [SGLangWeights(({"model.norm.weight": "2"},))]


def test_a_server_is_started_with_room_for_one_adapter_of_this_form() -> None:
    on_cpu, on_gpu = adapter_flags(FORM, "cpu"), adapter_flags(FORM, "cuda")
    assert on_cpu[:3] == on_gpu[:3] == ["--enable-lora", "--max-lora-rank=2", "--max-loras-per-batch=1"]
    assert on_cpu[-2:] == on_gpu[-2:] == ["--lora-target-modules", "o_proj"]
    assert {*on_cpu} - {*on_gpu} == {"--lora-backend=torch_native"}
