"""Client of one SGLang server over HTTP: tokens in, tokens out.

It knows nothing of other servers, text or training.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from dagrpo.core.escape import one_line
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest
from dagrpo.engine.errors import RequestsAborted, ServerAway, ServerError, ServerLost, ServerUnreachable
from dagrpo.engine.http import CONNECT_SECONDS, Endpoint, HttpServer
from dagrpo.engine.interface import Payload, WeightVersion
from dagrpo.engine.sglang.answers import MOST_TOKENS, adapters_of, completions_of, digests_of, scores_of, without_name
from dagrpo.engine.sglang.digests import SGLangWeights
from dagrpo.engine.sglang.images import files_of, pictures_to_be_checked, sent_ids, sent_pictures

MOST_ABORTS = 16  # that are sent at a time
UNKNOWN_ADAPTER = "LoRA adapter that has never been loaded"  # words with which a server refuses a request
# A server's names of the parts of its memory that it can release.
_WEIGHTS, _CACHE = "weights", "kv_cache"
COUNTS_PAGE = "/v1/loads?include=core"  # tokens and requests of its schedulers, as each has written them last
EMPTY_CACHE = f"/flush_cache?timeout={CONNECT_SECONDS}"  # empty the prefix cache; wait until the server is idle


class ServerClient:
    """Client of one server. Every method raises ServerError if the server dies, refuses, or does not answer in time."""

    def __init__(
        self, endpoint: Endpoint, timeout: float, most_at_once: int = 256, vocabulary: int = MOST_TOKENS
    ) -> None:
        """Open the client. `timeout`: seconds without progress of the server, after which a request fails.

        `most_at_once`: requests for completions that are sent at a time; more wait here, first come, first served. As many as the
        server decodes at a time keep it busy, while each costs a socket at both ends. No other request waits for these.
        `vocabulary`: the size of the model's, beyond which no answer may name a token.
        """
        self._http = HttpServer(endpoint, timeout, COUNTS_PAGE)
        self.address = self._http.address
        self._vocabulary = vocabulary
        self._released = False  # its GPU memory
        self._comes_back = endpoint.comes_back
        self._adapter: str | None = None  # that requests name; None: the weights alone answer them
        self._waiting: set[str] = set()  # identifiers of requests that are not answered yet
        self._aborted: set[str] = set()  # those of them that were aborted
        self._turns = asyncio.Semaphore(most_at_once)
        self._aborts = asyncio.Semaphore(MOST_ABORTS)
        self._queued: dict[
            str, asyncio.Task[Literal[True]]
        ] = {}  # by the identifiers of requests that wait for their turn

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()

    def reconnect(self) -> None:
        """Try the server again, though it has died."""
        self._http.forget_death()

    async def generate(
        self, requests: Sequence[SamplingRequest], version: WeightVersion, identifiers: Sequence[str] = ()
    ) -> list[Completion]:
        """Return one completion per request, in order, by one HTTP request. Raises ServerError also if other weights made them.

        With an identifier for each they can be aborted together: raises RequestsAborted then, with what was sampled for each.
        """
        assert not self._released, "a server without weights is asked"
        self._waiting.update(identifiers)
        try:
            async with self._turn(identifiers):
                await self._read_shared((request.input_ids, request) for request in requests)
                if not self._aborted.isdisjoint(identifiers):
                    raise RequestsAborted
                answer = await self._answer_to(self._body(requests, identifiers))
                aborted = not self._aborted.isdisjoint(identifiers)
                completions = completions_of(
                    answer, requests, self.address, version, self._vocabulary, may_be_aborted=aborted
                )
                if aborted:
                    raise RequestsAborted(completions)
                return completions
        finally:
            self._waiting.difference_update(identifiers)
            self._aborted.difference_update(identifiers)

    @asynccontextmanager
    async def _turn(self, identifiers: Sequence[str]) -> AsyncIterator[None]:
        """Wait until a request may be sent, and hold its turn. Raises RequestsAborted at once if it is aborted while it waits."""
        turn = asyncio.ensure_future(self._turns.acquire())
        self._queued.update(dict.fromkeys(identifiers, turn))
        try:
            await turn
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise RequestsAborted from None  # by `abort`, which cancels the turn alone
            if not turn.cancelled():
                self._turns.release()
            raise
        finally:
            for identifier in identifiers:
                del self._queued[identifier]
        try:
            yield
        finally:
            self._turns.release()

    def _body(self, requests: Sequence[SamplingRequest], identifiers: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": [sent_ids(request.input_ids, request.pictures) for request in requests],
            "sampling_params": [sampling_params(request) for request in requests],
            "return_logprob": True,
            "logprob_start_len": -1,  # none for the prompt
            **self._named(len(requests)),
            **pictures_to_be_checked([files_of(request) for request in requests]),
        }
        if any(request.support for request in requests):
            body["return_sampling_mask"] = [request.support for request in requests]
        return body | ({"rid": [*identifiers]} if identifiers else {})

    async def abort(self, identifiers: Sequence[str]) -> None:
        """Abort these requests, which the server then answers at once.

        Those that wait for their turn end here. Others may still be on their way, and an abort that comes before its request has no
        effect: callers repeat the abort while they wait.
        """
        self._aborted.update(self._waiting.intersection(identifiers))
        for identifier in identifiers:
            if identifier in self._queued and self._queued[identifier].cancel():
                continue
            async with self._aborts:
                await self._http.post("/abort_request", {"rid": identifier})

    async def score(self, requests: Sequence[ScoringRequest], version: WeightVersion) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order, by one HTTP request.

        Raises ServerError also if they come from other weights.
        """
        assert not self._released, "a server without weights is asked"
        await self._read_shared((request.token_ids[: request.first], request) for request in requests)
        body: dict[str, Any] = {
            "input_ids": [sent_ids(request.token_ids, request.pictures) for request in requests],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": [request.first - 1 for request in requests],  # the first token's own is not reported
            **self._named(len(requests)),
            **pictures_to_be_checked([files_of(request) for request in requests]),
        }
        answer = await self._answer_to(body)
        return scores_of(answer, requests, self.address, version)

    async def load(self, folder: Path, version: WeightVersion) -> None:
        """Load a folder's safetensors into the server and empty its cache. A server without GPU memory allocates it again.

        A separate request empties the cache and waits until the server is idle: a server that has just answered may for a moment count that
        request as running, and would refuse to empty the cache with the update (SGLang 0.5.23).
        """
        body = {"model_path": str(folder.absolute()), "weight_version": version.sent, "flush_cache": False}
        await self._resume(_WEIGHTS)
        await self._http.post("/update_weights_from_disk", body)
        await self._resume(_CACHE)  # only now, when nothing of the loading takes memory any more
        await self.empty_cache()

    async def _resume(self, tag: str) -> None:
        """Make a server without GPU memory allocate this part of it again."""
        if self._released:
            await self._http.post("/resume_memory_occupation", {"tags": [tag]})
            self._released = tag != _CACHE

    async def begin_sync(self) -> None:
        """Prepare the server for buckets of weights. A server without GPU memory allocates that of its weights again."""
        await self._resume(_WEIGHTS)
        await self._http.post("/begin_weight_update", {})

    async def join(self, group: Mapping[str, Any], rank: int) -> None:
        """Make the server join a group for broadcasts, whose fields are these; its first rank there is `rank`."""
        await self._post_in_a_group("/init_weights_update_group", {**group, "rank_offset": rank})

    async def leave(self, group: Mapping[str, Any]) -> None:
        """Make the server leave a group that it has joined by these fields. One that was started again since knows none."""
        try:
            await self._http.post("/destroy_weights_update_group", {"group_name": group["group_name"]})
        except (ServerLost, ServerUnreachable):
            raise
        except ServerError:  # it knows no such group
            pass

    async def load_bucket(self, payload: Payload, version: WeightVersion | None) -> None:
        """Load one bucket into the server (see tensor_sync.py, and broadcast.py for fields of a request).

        With the last of a weight sync, the server holds `version`.
        """
        named = {} if version is None else {"weight_version": version.sent}
        common = {"load_format": "flattened_bucket", "flush_cache": False, **named}
        if isinstance(payload, Mapping):
            await self._post_in_a_group("/update_weights_from_distributed", {**payload, **common})
        else:
            await self._http.post("/update_weights_from_tensor", {"serialized_named_tensors": [*payload], **common})

    async def _post_in_a_group(self, path: str, body: dict[str, Any]) -> None:
        """Send a request of a broadcast. Raises ServerAway if it is refused: another server may have been started unseen."""
        try:
            await self._http.post(path, body)
        except ServerUnreachable:
            raise
        except ServerError as error:
            raise ServerAway(str(error)) from None

    async def end_sync(self) -> None:
        """Switch the server to the new weights, once it holds all buckets, and empty its cache."""
        await self._http.post("/end_weight_update", {})
        await self._resume(_CACHE)
        await self.empty_cache()

    async def load_adapter(self, folder: Path, version: WeightVersion) -> None:
        """Load an adapter, which serves all later requests, and remove every other adapter and its cache.

        The server's weights stay unchanged. Raises ServerError also if it then holds other adapters. Requires a server that was started
        with command.adapter_flags.
        """
        name = version.sent
        body = {"lora_name": name, "lora_path": str(folder.absolute())}
        try:
            loaded = await self._change_adapters("/load_lora_adapter", body)
        except ServerError:
            if folder.is_dir():
                raise
            raise ServerError(
                f"{folder} has gone before {self.address} could load the adapter in it: start again, and leave the folder alone while a "
                "run uses it."
            ) from None
        if self._adapter is not None and self._adapter not in loaded and not self._comes_back:
            raise self._away()
        for other in sorted(loaded - {name}):
            loaded = await self._change_adapters("/unload_lora_adapter", {"lora_name": other})
        if loaded != {name}:
            raise ServerError(
                f"{self.address} holds the adapters {one_line(str(sorted(loaded)), 100)} instead of {name}: another process uses this "
                "server; give each run its own server."
            )
        await self._http.post("/update_weight_version", {"new_version": name, "abort_all_requests": False})
        self._adapter = name
        await self.empty_cache()

    async def _change_adapters(self, path: str, body: dict[str, Any]) -> set[str]:
        """Load or unload an adapter; return the names of the adapters that the server then holds."""
        return adapters_of(await self._http.post(path, body), path, self.address)

    async def release_memory(self) -> None:
        """Release the GPU memory of the server's weights and cache. It cannot answer until `load`.

        Requires a server that was started with MEMORY_FLAGS. Its weights are lost. It must be idle, or it would exit
        (SGLang 0.5.23): emptying the cache first waits until it is.
        """
        await self.empty_cache()
        await self._http.post("/release_memory_occupation", {"tags": [_CACHE, _WEIGHTS]})
        self._released = True

    async def digests(self) -> SGLangWeights:
        """Return the digest of each tensor of each rank, by the server's names (see digests.py), and an adapter's by PEFT's.

        Only while no request is running: to report them, a server swaps adapters. Raises ServerError also if it reports digests of another
        adapter than the one that requests name. Where they name none, those of adapters that an earlier run has left are dropped.
        """
        ranks = digests_of(await self._http.post("/weights_checker", {"action": "checksum"}), self.address)
        return SGLangWeights(tuple(without_name(rank, self._adapter, self.address) for rank in ranks))

    async def empty_cache(self) -> None:
        """Empty the prefix cache; wait until the server is idle."""
        await self._http.post(EMPTY_CACHE, {})

    async def _read_shared(self, prompts: Iterable[tuple[tuple[int, ...], SamplingRequest | ScoringRequest]]) -> None:
        """Fill the cache with prompts that appear more than once: SGLang would compute each copy again."""
        counts = Counter((sent_ids(ids, request.pictures), files_of(request)) for ids, request in prompts)
        shared = [prompt for prompt, count in counts.items() if count > 1]
        if shared:
            token_ids, pictures = zip(*shared, strict=True)
            body = {"input_ids": token_ids, "sampling_params": {"max_new_tokens": 0}, **self._named(len(shared))}
            await self._answer_to(body | sent_pictures(pictures))

    async def _answer_to(self, body: Mapping[str, Any]) -> bytes:
        """Return the answer to a request. Raises ServerAway if the server lacks the adapter: it was started again."""
        try:
            return await self._http.post("/generate", {**body})
        except ServerError as error:
            if self._adapter is not None and UNKNOWN_ADAPTER in str(error):
                raise self._away() from None
            raise

    def _away(self) -> ServerAway:
        return ServerAway(
            f"{self.address} has lost the adapter {self._adapter}: it was started again, perhaps with other weights."
        )

    def _named(self, count: int) -> dict[str, Any]:
        """Return the request-body field that names the adapter for each of `count` prompts; {} without one."""
        return {} if self._adapter is None else {"lora_path": [self._adapter] * count}


def sampling_params(request: SamplingRequest) -> dict[str, Any]:
    """Return a request's sampling parameters for SGLang; omitted ones would come from the checkpoint."""
    unwanted = request.pictures.tokens.unwritten if request.pictures else ()
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "max_new_tokens": request.max_new_tokens,
        "sampling_seed": request.seed,
        **({"stop_token_ids": unwanted} if unwanted else {}),  # nothing that comes after one counts
    }
