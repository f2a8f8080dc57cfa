"""What a real SGLang server answers with an adapter that it serves, with its next version, and when somebody else has been there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch
from tests.engine.batches import batch, trainer_logprobs
from tests.engine.pools import STARTED_WITH, pool_over
from tests.engine.served_adapters import FORM, adapter, merged_into

from dagrpo.checkpoints.formats.huggingface import HuggingFaceTensors
from dagrpo.checkpoints.tensors import StateTensors
from dagrpo.core.types import Completion, ScoringRequest
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerAway, ServerError
from dagrpo.engine.http import Endpoint
from dagrpo.engine.interface import Adapter
from dagrpo.engine.pool import ServerPool
from dagrpo.engine.sglang.digests import counterparts, differing
from dagrpo.engine.sglang.server import SGLangServer
from dagrpo.engine.weight_files import AdapterFolders, WeightsFolder

pytestmark = [pytest.mark.server, pytest.mark.nightly]


@pytest.fixture(scope="module")
def serving(
    tiny_model: Path, engine: sglang.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SGLangServer]:
    log = tmp_path_factory.mktemp("logs") / "server.log"
    with SGLangServer(tiny_model, engine, log, adapter=FORM) as server:
        yield server


@pytest.fixture
def pool(serving: SGLangServer, tiny_model: Path) -> Iterator[ServerPool]:
    """The engine of that server; no adapter of this test is loaded yet."""
    with pool_over([serving.endpoint], tiny_model, adapters=FORM) as pool:
        yield pool


def _asked(server: SGLangServer, path: str, body: Mapping[str, object]) -> httpx.Response:
    """As somebody else asks it."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    return httpx.post(server.address + path, json=body, headers=headers, timeout=60, trust_env=False)


def _logprobs(completions: Sequence[Completion]) -> torch.Tensor:
    return torch.tensor([value for completion in completions for value in completion.logprobs])


@pytest.mark.parametrize("parts", [None, ["q_proj", "v_proj"], ["up_proj", "down_proj"]])
def test_logprobs_and_scores_are_those_of_merged_weights_to_rounding(
    parts: list[str] | None, pool: ServerPool, tiny_model: Path, tmp_path: Path
) -> None:
    tensors = adapter(tiny_model, 1, parts) if parts else adapter(tiny_model, 1)
    pool.load(tensors, "first")
    requests = batch(prompts=8, samples=2)
    completions = pool.generate(requests, lockstep=True)
    merged = merged_into(tiny_model, tensors, tmp_path / "merged")
    expected = torch.tensor(trainer_logprobs(merged, requests, completions))
    torch.testing.assert_close(_logprobs(completions), expected, atol=1e-5, rtol=0)
    without = torch.tensor(trainer_logprobs(tiny_model, requests, completions))
    assert (expected - without).abs().max() > 0.1
    scored = [
        ScoringRequest(token_ids=(*each.input_ids, *completion.token_ids), first=len(each.input_ids))
        for each, completion in zip(requests, completions, strict=True)
    ]
    scores = torch.tensor([value for each in pool.score(scored, lockstep=True) for value in each])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_a_version_answers_nothing_with_what_an_earlier_one_has_left_in_the_cache(
    pool: ServerPool, tiny_model: Path
) -> None:
    requests = batch(prompts=8, samples=2)
    first, second = adapter(tiny_model, 1), adapter(tiny_model, 2)
    pool.load(second, "second")
    alone = pool.generate(requests, lockstep=False)
    pool.load(first, "first")
    others = pool.generate(requests, lockstep=False)
    pool.load(second, "second")
    again = pool.generate(requests, lockstep=False)
    assert [each.cached_tokens for each in again] == [each.cached_tokens for each in alone]
    torch.testing.assert_close(_logprobs(again), _logprobs(alone), atol=0, rtol=0)
    assert [each.token_ids for each in others] != [each.token_ids for each in again]
    assert pool.generate(requests, lockstep=True) == pool.generate(requests, lockstep=True)


def test_a_server_tells_every_bit_of_its_adapter_and_of_the_weights_beside_it(
    pool: ServerPool, tiny_model: Path
) -> None:
    tensors = adapter(tiny_model, 3)
    pool.load(tensors, "third")
    ((told,),) = [server.ranks for server in pool.digests()]
    for weights, count in ((tensors, 4 * 4 * 2), (HuggingFaceTensors(tiny_model), 4 * 7 + 2)):
        known = counterparts([*told], [*weights.specs])
        assert len(known) == count
        assert differing([*known], [told], known, weights) == []
    flipped = {name: tensors.read(name).clone() for name in tensors.specs}
    known = counterparts([*told], [*tensors.specs])
    for name, parts in known.items():
        flipped[parts[-1]].view(torch.int32)[-1, -1] ^= 1
        assert differing([name], [told], known, StateTensors(flipped)) == [name]


def test_an_earlier_version_and_what_somebody_else_has_left_are_gone(
    serving: SGLangServer, pool: ServerPool, tiny_model: Path, tmp_path: Path
) -> None:
    with WeightsFolder(tiny_model, tmp_path) as elsewhere:
        left = AdapterFolders(FORM, elsewhere).write(adapter(tiny_model, 5), STARTED_WITH)
        assert _asked(serving, "/load_lora_adapter", {"lora_name": "left", "lora_path": str(left)}).status_code == 200
        pool.load(adapter(tiny_model, 1), "first")
        earlier = pool._version.sent
        pool.load(adapter(tiny_model, 2), "second")
        listed = _asked(serving, "/load_lora_adapter", {"lora_name": "left", "lora_path": str(left)}).json()
        assert set(listed["loaded_adapters"]) == {"left", pool._version.sent}
        with pytest.raises(
            ServerError, match=r"holds left:base_model.* a tensor of an adapter that this run has not loaded"
        ):
            pool.digests()
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1}, "lora_path": earlier}
    answer = _asked(serving, "/generate", body)
    assert answer.status_code == 400, "SGLang would load a version anew by its name, but its folder is gone"


def test_a_server_elsewhere_serves_adapters_if_it_was_started_for_them(
    serving: SGLangServer,
    tiny_model: Path,
    tmp_path: Path,
    server: SGLangServer,
    monkeypatch: pytest.MonkeyPatch,
    engine: sglang.Config,
) -> None:
    served = Adapter(form=FORM, tensors=adapter(tiny_model, 1))
    merged = merged_into(tiny_model, adapter(tiny_model, 1), tmp_path / "merged")

    def opened(at: SGLangServer) -> Sequence[Completion]:
        monkeypatch.setenv("SGLANG_API_KEY", at.api_key)
        params = engine.model_copy(update={"servers": [at.address], "weights_folder": str(tmp_path / "shared")})
        log = tmp_path / "server.log"
        with open_engine(tiny_model, params, log, dtype="float32", deterministic=False, adapter=served) as pool:
            return pool.generate(requests, lockstep=True)

    requests = batch(prompts=8, samples=2)
    completions = opened(serving)
    expected = torch.tensor(trainer_logprobs(merged, requests, completions))
    torch.testing.assert_close(_logprobs(completions), expected, atol=1e-5, rtol=0)
    with pytest.raises(ServerError, match=r"refused /load_lora_adapter \(400\): LoRA is not enabled.*--enable-lora"):
        opened(server)


def test_a_server_that_was_started_again_after_an_adapter_answers_nothing_before_the_next_one(
    tiny_model: Path, engine: sglang.Config, tmp_path: Path
) -> None:
    requests = batch(prompts=8, samples=2)
    with ExitStack() as stack:
        server = stack.enter_context(SGLangServer(tiny_model, engine, tmp_path / "server.log", adapter=FORM))
        endpoint = Endpoint(address=server.address, api_key=server.api_key, comes_back=True)
        pool = stack.enter_context(pool_over([endpoint], tiny_model, tmp_path / "weights", adapters=FORM))
        pool.load(adapter(tiny_model, 1), "first")
        before = pool.generate(requests, lockstep=True)
        pool.load(adapter(tiny_model, 2), "second")
        server.process.kill_group()
        with server.begun_again():
            with pytest.raises(ServerAway, match=r"has lost the adapter second-.*: it was started again"):
                pool.generate(requests, lockstep=True)
            pool.load(adapter(tiny_model, 1), "first")
            assert pool.generate(requests, lockstep=True) == before
