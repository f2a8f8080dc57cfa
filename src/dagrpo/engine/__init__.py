"""Rollout engines: the registry, and what each of them can do.

A folder here is one engine, which its `__init__.py` offers as ENGINE. `runtime.engine.name` chooses it. Callers ask its
Capabilities, never its name. docs/extending.md says how another one is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from dagrpo.core.plugins import Plugins
from dagrpo.engine.config import EngineConfig

if TYPE_CHECKING:
    from pathlib import Path

    from dagrpo.checkpoints.gather import RankMemory
    from dagrpo.engine.interface import ClassifierOpener, EngineOpener, Opening, RolloutEngine
    from dagrpo.models.config import Model

ConfigType = TypeVar("ConfigType", bound=EngineConfig)
DEFAULT = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLayers:
    """Layers of a language model for which an engine serves a LoRA adapter."""

    served: re.Pattern[str]  # matches the whole name of each, such as model.layers.0.self_attn.q_proj
    # Layers that the engine computes as one, by the last part of their names: either all of them have an adapter, or none.
    joined: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Abilities of an engine. Parameters that need a missing one are refused when params.yaml is parsed."""

    bit_exact: bool = False  # the same lockstep batch gives the same tokens and logprobs: rollout.deterministic
    sampling_mask: int = 0  # most tokens of a reported sampling mask: rollout.top_k; 0: it reports none
    scores: bool = False  # it returns logprobs of given tokens: algorithm.teacher
    aborts: bool = False  # it aborts running requests: training.dynamic_sampling.max_aborts
    aborted_tokens: bool = False  # it returns what it had sampled for these: training.dynamic_sampling.partial_rollouts
    pictures: bool = False  # it reads prompts with pictures
    float32_head: bool = False  # it computes logits in float32 beside a 16-bit model: rollout.head_dtype
    weight_digest: bool = False  # it reports digests of its tensors: training.gates.digest_mebibytes
    lora: AdapterLayers | None = None  # it serves an adapter beside its weights: training.lora.serving
    release_memory: bool = False  # it leaves its GPU while the policy is updated: release_memory
    tensor_parallel: bool = False  # it divides a model over several GPUs: tensor_parallel
    spans_nodes: bool = False  # it divides a model over several machines: nodes_per_server
    elsewhere: bool = False  # it works with servers that run elsewhere: servers


def _nine_tenths(config: Any, memory: int) -> float:
    return 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of a server beside its weights and its key-value cache, for `dagrpo plan`."""

    prefill_tokens: int = 4096  # tokens of prompts that are computed at the same time
    logit_copies: int = 3  # of the logits of the tokens that are sampled at the same time
    gpu_bytes: int = 0  # of its processes on a GPU: context, graphs and workspaces of libraries
    cpu_bytes: int = 0  # of its processes on a CPU, without the files that they map
    packed_dtypes: frozenset[str] = frozenset()  # whose weights it holds twice on a CPU
    packed_limit: int = 0  # bytes of the largest model that it holds twice
    # Returns which share of a GPU's free memory weights and cache take where `max_total_tokens` is null, of its config and the GPU's bytes.
    static_share: Callable[[Any, int], float] = _nine_tenths
    sync_bytes: int = 0  # of a trainer's rank, for tensors on their way to it (Engine.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(Generic[ConfigType]):
    """An engine that params.yaml can name."""

    config: type[ConfigType]  # its keys in runtime.engine: those of EngineConfig, and its own
    capabilities: Capabilities
    open: EngineOpener  # imports what it needs inside: parsing params.yaml imports this record
    # Returns a server, not started, for a training on other nodes: see nodes.py. None: it has none (runtime.engine.nodes).
    start: Callable[..., Any] | None = None
    open_classifier: ClassifierOpener | None = (
        None  # serves reward.components.reward_model; None: it serves no classifiers
    )
    # Returns memory of a rank of a training that the server on its GPU opens. None: it opens none (weight_sync: tensors).
    memory: Callable[[], RankMemory] | None = None
    packages: tuple[str, ...] = ()  # installed ones whose versions may change its results; part of a stage's identity
    own_packages: tuple[
        str, ...
    ] = ()  # of this project, that its server imports by itself; their code is that of its stages
    key_variable: str | None = None  # environment variable with the key of servers that run elsewhere
    reserved_tokens: int = 0  # of its context, that no prompt can use
    footprint: Footprint = field(default_factory=Footprint)
    # (config, key of its section, model, rollout.deterministic): raises UserError for what it cannot do beyond its capabilities.
    check: Callable[[ConfigType, str, Model, bool], None] | None = None


ENGINES: Plugins[Engine[Any]] = Plugins(
    what="engine",
    package=__name__,
    attribute="ENGINE",
    group="dagrpo.engines",
    key="runtime.engine.name",
    kind=Engine,
    folders=True,
)


def engine_of(config: EngineConfig) -> Engine[Any]:
    """Return the engine that a section names."""
    return ENGINES.get(config.name)


def capabilities_of(config: EngineConfig) -> Capabilities:
    """Return the capabilities of the engine that a section names."""
    return engine_of(config).capabilities


def may_share_memory(config: EngineConfig, ranks: int) -> bool:
    """Return True if servers of this section may open tensors of the trainer's first ranks, one rank on each of their GPUs, so that
    these have to allocate them for it. `ranks`: on the first machine.
    """
    beside = config.gpus <= ranks and not config.own_gpus and not config.serves_elsewhere
    return engine_of(config).memory is not None and config.weight_sync in ("tensors", None) and beside


def open_engine(
    model: Path, config: EngineConfig, log: Path, **options: Unpack[Opening]
) -> AbstractContextManager[RolloutEngine]:
    """Open the engine that `config` names, until the context ends; it holds `weights`, else those of the folder `model`.

    `model` is a folder with configuration and tokenizer; without `weights`, also with weights in the Hugging Face layout. `log`:
    file for its output; further ones go beside it. `weights` is read while the engine is opened, and not afterwards. `version` (left out:
    initial) is the name of the weights in completions. `keep_pictures`: the vision tower does not change, so that its outputs may be
    cached. With an `adapter` the weights stay in the engine, `version` is that of the adapter, and `load` gets tensors of its form. Raises
    UserError if the engine cannot be used, and how to fix that.
    """
    return engine_of(config).open(model, config, log, **options)
