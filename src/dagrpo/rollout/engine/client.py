"""Talks to SGLang over HTTP: tokens in, tokens out. Knows nothing of text, rewards or training.

Lockstep makes a batch repeatable to the bit. Each token depends on its request's seed, its position and the logits alone,
but logits round differently when a matrix product has other rows. So a lockstep batch goes to an idle server with an empty
cache, as one HTTP request: SGLang hands the requests of one HTTP request to its scheduler in one piece, and all that the
scheduler then does follows from them. Nobody else may use the server meanwhile.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import urllib3

from dagrpo.records import Completion, SamplingRequest
from dagrpo.rollout.engine.errors import ServerError

CONNECT_SECONDS = 10.0
DIAGNOSIS_SECONDS = 5.0  # until a process whose connection broke can be seen to be dead
SLICE = 64  # requests per HTTP request when not in lockstep
SLICES_IN_FLIGHT = 8  # per server


class RolloutClient:
    """Samples completions from one or more SGLang servers that serve the same weights."""

    def __init__(
        self,
        servers: Sequence[str],
        timeout: float,
        *,
        api_key: str | None = None,
        diagnose: Callable[[], str | None] | None = None,
    ) -> None:
        """Servers by address, such as http://127.0.0.1:30000; `timeout` in seconds for one HTTP request.

        `diagnose` is asked, when a connection breaks, for one sentence that says why; None: it does not know.
        """
        assert servers, "no server"
        self._servers = [address.rstrip("/") for address in servers]
        self._diagnose = diagnose
        self._timeout = timeout
        self._version: str | None = None  # of the weights, once this client has set it
        self._cache_is_empty = False
        authorization = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = urllib3.PoolManager(
            headers={"Content-Type": "application/json"} | authorization,
            retries=False,
            maxsize=SLICES_IN_FLIGHT,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=timeout),
        )

    def generate(self, requests: Sequence[SamplingRequest], *, lockstep: bool) -> list[Completion]:
        """One completion per request, in order. In lockstep, the same requests give the same tokens and logprobs.

        ServerError when a server dies, refuses, does not answer in time, or answers with other weights than expected.
        """
        if lockstep and not self._cache_is_empty:
            self._empty_caches()
        self._cache_is_empty = False
        parts = split(len(requests), len(self._servers), lockstep=lockstep)
        completions: dict[int, Completion] = {}
        with ThreadPoolExecutor(max_workers=len(self._servers) * SLICES_IN_FLIGHT) as pool:
            answers = [pool.submit(self._complete, server, [requests[i] for i in part]) for server, part in parts]
            for (_, part), answer in zip(parts, answers, strict=True):
                completions.update(zip(part, answer.result(), strict=True))
        return [completions[index] for index in range(len(requests))]

    def update_weights(self, folder: Path, version: str) -> None:
        """Have every server load a folder's safetensors, and expect this version in all answers from now on.

        ServerError when a server cannot load them.
        """
        body = {"model_path": str(folder.resolve()), "weight_version": version, "flush_cache": True}
        for server in self._servers:
            self._post(server, "/update_weights_from_disk", body)
        self._version = version
        self._cache_is_empty = True

    def _empty_caches(self) -> None:
        for server in self._servers:
            self._post(server, f"/flush_cache?timeout={CONNECT_SECONDS}", {})

    def _complete(self, server: int, requests: Sequence[SamplingRequest]) -> list[Completion]:
        address = self._servers[server]
        repeated = [prompt for prompt, count in Counter(r.input_ids for r in requests).items() if count > 1]
        if repeated:
            self._read_prompts(address, repeated)
        body = {
            "input_ids": [request.input_ids for request in requests],
            "sampling_params": [sampling_params(request) for request in requests],
            "return_logprob": True,
            "logprob_start_len": -1,  # none for the prompt
        }
        replies = json.loads(self._post(address, "/generate", body))
        assert len(replies) == len(requests), f"{len(replies)} replies to {len(requests)} requests"
        return [completion_of(reply, address, self._version) for reply in replies]

    def _read_prompts(self, address: str, prompts: Sequence[tuple[int, ...]]) -> None:
        """Fill the cache with prompts that several samples share: SGLang would compute each of them anew."""
        self._post(address, "/generate", {"input_ids": prompts, "sampling_params": {"max_new_tokens": 0}})

    def _post(self, address: str, path: str, body: dict[str, Any]) -> bytes:
        try:
            response = self._http.request("POST", address + path, body=json.dumps(body).encode())
        except urllib3.exceptions.ReadTimeoutError:
            raise ServerError(
                f"{address} did not answer within {self._timeout:g} s (runtime.engine.request_timeout): "
                "raise it, or ask for less at a time."
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise ServerError(self._diagnosis() or f"{address} cannot be reached: {error}") from None
        if response.status != 200:
            raise ServerError(f"{address} refused {path.partition('?')[0]}: {_message(response.data)}")
        return response.data

    def _diagnosis(self) -> str | None:
        if self._diagnose is None:
            return None
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        while (sentence := self._diagnose()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return sentence


def split(requests: int, servers: int, *, lockstep: bool) -> list[tuple[int, range]]:
    """Which server gets which requests: one part each in lockstep, else slices in turn."""
    if lockstep:
        return [(server, range(server, requests, servers)) for server in range(min(servers, requests))]
    starts = range(0, requests, SLICE)
    return [(turn % servers, range(start, min(start + SLICE, requests))) for turn, start in enumerate(starts)]


def sampling_params(request: SamplingRequest) -> dict[str, float | int]:
    """A request's sampling, in SGLang's words; what is left out would come from the checkpoint."""
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "max_new_tokens": request.max_new_tokens,
        "sampling_seed": request.seed,
    }


def completion_of(reply: dict[str, Any], address: str, version: str | None) -> Completion:
    """One reply, checked. ServerError when it was aborted, has no logprobs, or comes from other weights."""
    about = reply["meta_info"]
    reason = about["finish_reason"]
    if reason["type"] not in ("stop", "length"):
        raise ServerError(f"{address} gave up a request: {reason.get('message', reason['type'])}")
    versions = {about["weight_version"], *(span["version"] for span in about.get("weight_versions") or ())}
    if version is not None and versions != {version}:
        raise ServerError(
            f"{address} answered with weights {sorted(versions)} instead of {version!r}: "
            "somebody else updates this server; give each run a server of its own."
        )
    pairs = about["output_token_logprobs"]  # [logprob, token, text] each
    if any(logprob is None for logprob, *_ in pairs):
        raise ServerError(f"{address} computed logprobs that are no numbers: the weights are not finite.")
    return Completion(
        token_ids=tuple(token for _, token, *_ in pairs),
        logprobs=tuple(logprob for logprob, *_ in pairs),
        finish_reason=reason["type"],
    )


def _message(data: bytes) -> str:
    """What a refusal says: {"message": ...}, {"error": {"message": ...}}, or plain text."""
    try:
        answer = json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()
    while isinstance(answer, dict):
        answer = answer.get("message") or answer.get("error") or json.dumps(answer)
    return str(answer)
