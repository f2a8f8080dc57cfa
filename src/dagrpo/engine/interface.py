"""Protocol of a rollout engine, and the records that it exchanges."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, Unpack

from dagrpo.checkpoints.tensors import Tensors
from dagrpo.core.section import HeadDtype
from dagrpo.core.types import Completion, SamplingRequest, ScoringRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """Name of weights, and the name made unique for the server."""

    name: str  # such as step_3; the same in every run, so it may stand in an output
    sent: str  # name that the server uses


WITHOUT_WEIGHTS = "without-weights"  # begins the name of what a server holds that was started again


def new_version(name: str) -> WeightVersion:
    """Return the name with a random suffix: base and trained policy, or two seeds, may load weights of one name into one server."""
    return WeightVersion(name=name, sent=f"{name}-{secrets.token_hex(4)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterForm:
    """Form that all versions of a LoRA adapter share, and that an engine reserves memory for."""

    rank: int
    alpha: int
    target_modules: tuple[str, ...]  # last parts of the names of layers, such as q_proj


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One version of an adapter: A and B of every layer under their names in PEFT's files."""

    form: AdapterForm
    tensors: Tensors


class HeldWeights(Protocol):
    """Digests of the tensors that one server holds, by the server's own names; an adapter's by their names in PEFT's files."""

    @property
    def ranks(self) -> Sequence[Mapping[str, str]]:
        """Return the digests of each rank: one for each GPU that the server divides its weights over."""

    def comparable(self, weights: Tensors) -> dict[str, tuple[str, ...]]:
        """Return each of the server's tensors whose form is known, with the tensors of `weights` that it joins, in order."""

    def differing(self, parts: Mapping[str, tuple[str, ...]], weights: Tensors) -> list[str]:
        """Return those of the server's tensors that differ from `weights`. `parts`: some of `comparable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """Request that was aborted, and what had been sampled for it; it may have finished just before."""

    session: str
    request: SamplingRequest
    completion: Completion  # as far as its server says


class RolloutEngine(Protocol):
    """Engine that completes tokens. All of its servers hold the same weights.

    Every method may raise ServerError if a server dies, refuses, or does not answer in time.
    """

    def generate(
        self,
        requests: Sequence[SamplingRequest],
        *,
        lockstep: bool,
        places: Sequence[int] | None = None,
        first_wave: bool = True,
    ) -> list[Completion]:
        """Return one completion per request, in order. In lockstep, the same requests give the same tokens and logprobs.

        A lockstep batch of several turns goes in waves: `places` says which attempt of the batch each request belongs to (None:
        in their order), and only the first wave empties the cache.
        """

    async def complete(self, request: SamplingRequest, session: str, *, abortable: bool = False) -> Completion:
        """Return one completion. Requests of one session go to one server, which has their shared tokens in its cache.

        `abortable`: the request is not sent together with those of other sessions, so that it does not wait for them and can be
        aborted. Raises ServerGone if that server died and others are left: the session's next requests go to one of those.
        """

    async def abort(self, sessions: Collection[str]) -> list[Aborted]:
        """Abort the abortable requests of these sessions; return what was sampled for those that a server has answered.

        When it returns, all of them have ended.
        """

    def score(self, requests: Sequence[ScoringRequest], *, lockstep: bool) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order, at temperature 1 over the whole vocabulary."""

    def interrupt(self) -> None:
        """Make calls that another thread waits for raise an error. The engine is about to be closed, and takes no further requests."""

    def load(self, weights: Tensors, version: str) -> None:
        """Replace the weights, or the adapter of an engine that was opened with one; later completions come from them."""

    def release_memory(self) -> None:
        """Release GPU memory until `load`, which comes next. No effect unless runtime.engine.release_memory asks for it."""

    def digests(self) -> Sequence[HeldWeights]:
        """Return the digests of the tensors that each server holds. Only while no request is running."""


class Classifier(Protocol):
    """Sequence classifier with one label, behind servers."""

    def scores(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """Return the logit of each conversation, which is given by its tokens. Raises ServerError if a server fails."""


class ClassifierOpener(Protocol):
    """Signature of a plug-in's `open_classifier`: `model` is a folder in the Hugging Face layout, `log` a file for its output.

    reserved: the number of GPUs, the last ones, that servers of the policy have to themselves.
    """

    def __call__(
        self, model: Path, config: Any, log: Path, *, dtype: str, reserved: int
    ) -> AbstractContextManager[Classifier]: ...


Payload = (
    Sequence[str] | Mapping[str, Any]
)  # handles, one for each GPU of a server; of a broadcast, the fields of the request


class Bucket(Protocol):
    """Tensors of a weight sync that a server gets together: in memory that it shares with ranks, or by a broadcast."""

    @property
    def is_last(self) -> bool:
        """Return True for the last bucket of a weight sync."""

    def payloads(self, servers: Sequence[int]) -> Sequence[Payload]:
        """Return what each of these servers gets, by number, for one opening. They have closed the bucket before."""

    def sent(self) -> AbstractContextManager[None]:
        """Send a broadcast while the block asks the servers for it."""


class Group(Protocol):
    """Process group of the trainer and its servers, for broadcasts."""

    def formed(self, servers: int) -> AbstractContextManager[Mapping[str, Any]]:
        """Form a group with `servers` servers while the block asks them to join, by the fields that it yields."""

    def rank_of(self, server: int) -> int:
        """Return the rank of the first process of a server, the number of which in the group counts from 0."""


class Client(Protocol):
    """Client of one server. Every method raises ServerError if the server dies, refuses, or does not answer in time."""

    async def generate(
        self, requests: Sequence[SamplingRequest], version: WeightVersion, identifiers: Sequence[str] = ()
    ) -> list[Completion]:
        """Return one completion per request, in order, by one HTTP request. `identifiers`: of each, for `abort`.

        Raises RequestsAborted for aborted requests, and ServerError if other weights than `version` made them.
        """

    async def score(self, requests: Sequence[ScoringRequest], version: WeightVersion) -> list[tuple[float, ...]]:
        """Return the logprobs that each request asks for, in order."""

    async def abort(self, identifiers: Sequence[str]) -> None:
        """Abort these requests. An abort before its request has no effect: callers repeat it."""

    def reconnect(self) -> None:
        """Try the server again, though it has died: another may have been started in its place."""

    async def load(self, folder: Path, version: WeightVersion) -> None:
        """Load a folder's safetensors and empty the cache. A server without GPU memory allocates it again."""

    async def load_adapter(self, folder: Path, version: WeightVersion) -> None:
        """Load an adapter in PEFT's layout, which serves all later requests, and remove every other one."""

    async def begin_sync(self) -> None:
        """Prepare for buckets of weights."""

    async def load_bucket(self, payload: Payload, version: WeightVersion | None) -> None:
        """Load one bucket. `version` comes with the last one."""

    async def join(self, group: Mapping[str, Any], rank: int) -> None:
        """Join a group for broadcasts, whose fields are these, from `rank` on."""

    async def leave(self, group: Mapping[str, Any]) -> None:
        """Leave a group that it may have joined by these fields."""

    async def end_sync(self) -> None:
        """Switch to the new weights and empty the cache."""

    async def release_memory(self) -> None:
        """Release the GPU memory of weights and cache until the next weight sync."""

    async def digests(self) -> HeldWeights:
        """Return the digests of the tensors that the server holds."""

    async def empty_cache(self) -> None:
        """Empty the prefix cache; wait until the server is idle."""


class Opening(TypedDict, total=False):
    """Keywords of `open_engine`, which says what they mean, and of every plug-in's `open`."""

    dtype: Required[str]
    deterministic: Required[bool]
    head_dtype: HeadDtype
    weights: Tensors | None
    version: str
    keep_pictures: bool
    adapter: Adapter | None


class EngineOpener(Protocol):
    """Signature of `open_engine`, and of every plug-in's `open`; `config` is then of the plug-in's own Config."""

    def __call__(
        self, model: Path, config: Any, log: Path, **options: Unpack[Opening]
    ) -> AbstractContextManager[RolloutEngine]: ...
