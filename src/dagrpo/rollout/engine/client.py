"""Speaks SGLang's HTTP protocol with one server: tokens in, tokens out. Knows nothing of other servers, text or training."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dagrpo.records import Completion, SamplingRequest
from dagrpo.rollout.engine.errors import ServerError, ServerLost, ServerUnreachable
from dagrpo.rollout.engine.version import WeightVersion

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0  # a connection is kept for; SGLang's server closes one after 5
DIAGNOSIS_SECONDS = 5.0  # until a process whose connection broke can be seen to be dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens, and what opens it."""

    address: str  # such as http://127.0.0.1:30000
    api_key: str | None = None
    # Says in a sentence why the server does not answer; None: it does not know.
    diagnose: Callable[[], str | None] | None = None


class ServerClient:
    """One server. Every method raises ServerError when it dies, refuses, or does not answer in time."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        """`timeout` in seconds for one HTTP request."""
        self.address = endpoint.address.rstrip("/")
        self._diagnose = endpoint.diagnose
        self._timeout = timeout
        authorization = {} if endpoint.api_key is None else {"Authorization": f"Bearer {endpoint.api_key}"}
        self._http = httpx.AsyncClient(
            headers={"Content-Type": "application/json"} | authorization,
            timeout=httpx.Timeout(connect=CONNECT_SECONDS, read=timeout, write=timeout, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS),
            trust_env=False,  # a proxy is not asked for what is on this machine or beside it
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def generate(self, requests: Sequence[SamplingRequest], version: WeightVersion) -> list[Completion]:
        """One completion per request, in order, by one HTTP request; ServerError also when other weights made them."""
        repeated = [prompt for prompt, count in Counter(r.input_ids for r in requests).items() if count > 1]
        if repeated:
            await self._read_prompts(repeated)
        body = {
            "input_ids": [request.input_ids for request in requests],
            "sampling_params": [sampling_params(request) for request in requests],
            "return_logprob": True,
            "logprob_start_len": -1,  # none for the prompt
        }
        replies = json.loads(await self._post("/generate", body))
        assert len(replies) == len(requests), f"{len(replies)} replies to {len(requests)} requests"
        return [completion_of(reply, self.address, version) for reply in replies]

    async def load(self, folder: Path, version: WeightVersion) -> None:
        """Have the server load a folder's safetensors, with an empty cache afterwards."""
        body = {"model_path": str(folder.absolute()), "weight_version": version.sent, "flush_cache": True}
        await self._post("/update_weights_from_disk", body)

    async def empty_cache(self) -> None:
        """Forget all prompts; waits until the server is idle."""
        await self._post(f"/flush_cache?timeout={CONNECT_SECONDS}", {})

    async def _read_prompts(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Fill the cache with prompts that several samples share: SGLang would compute each of them anew."""
        await self._post("/generate", {"input_ids": prompts, "sampling_params": {"max_new_tokens": 0}})

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        try:
            response = await self._sent(self.address + path, json.dumps(body).encode())
        except httpx.ReadTimeout:
            raise ServerError(
                f"{self.address} did not answer within {self._timeout:g} s (runtime.engine.request_timeout): "
                "raise it, or ask for less at a time."
            ) from None
        except httpx.HTTPError as error:
            if (death := await self._diagnosis()) is not None:
                raise ServerLost(death) from None
            raise ServerUnreachable(f"{self.address} cannot be reached: {_cause(error)}") from None
        if response.status_code != 200:
            raise ServerError(f"{self.address} refused {path.partition('?')[0]}: {_message(response.content)}")
        return response.content

    async def _sent(self, url: str, content: bytes) -> httpx.Response:
        """Once more on a fresh connection, when a server has closed an idle one just as it was to be used again."""
        try:
            return await self._http.post(url, content=content)
        except (httpx.WriteError, httpx.RemoteProtocolError):
            return await self._http.post(url, content=content)

    async def _diagnosis(self) -> str | None:
        if self._diagnose is None:
            return None
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        while (sentence := self._diagnose()) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return sentence


def sampling_params(request: SamplingRequest) -> dict[str, float | int]:
    """A request's sampling, in SGLang's words; what is left out would come from the checkpoint."""
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "max_new_tokens": request.max_new_tokens,
        "sampling_seed": request.seed,
    }


def completion_of(reply: dict[str, Any], address: str, version: WeightVersion) -> Completion:
    """One reply, checked. ServerError when it was aborted, has no logprobs, or comes from other weights."""
    about = reply["meta_info"]
    reason = about["finish_reason"]
    if reason["type"] not in ("stop", "length"):
        raise ServerError(f"{address} gave up a request: {reason.get('message', reason['type'])}")
    versions = {about["weight_version"], *(span["version"] for span in about.get("weight_versions") or ())}
    if versions != {version.sent}:
        raise ServerError(
            f"{address} answered with weights {sorted(versions)} instead of {version.sent!r}: "
            "somebody else updates this server; give each run a server of its own."
        )
    pairs = about["output_token_logprobs"]  # [logprob, token, text] each
    if any(logprob is None for logprob, *_ in pairs):
        raise ServerError(f"{address} computed logprobs that are no numbers: the weights are not finite.")
    return Completion(
        token_ids=tuple(token for _, token, *_ in pairs),
        logprobs=tuple(logprob for logprob, *_ in pairs),
        finish_reason=reason["type"],
        weight_version=version.name,
        cached_tokens=about.get("cached_tokens", 0),
    )


def _cause(error: BaseException) -> str:
    """httpx wraps what the system said, such as "Connection refused", several times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


def _message(data: bytes) -> str:
    """What a refusal says: {"message": ...}, {"error": {"message": ...}}, or plain text."""
    try:
        answer = json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()
    while isinstance(answer, dict):
        answer = answer.get("message") or answer.get("error") or json.dumps(answer)
    return str(answer)
