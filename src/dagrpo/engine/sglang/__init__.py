"""SGLang engine: its parameters, capabilities and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from dagrpo.core.errors import UserError, nearest
from dagrpo.core.plugin_sections import PluginName
from dagrpo.core.section import Texts
from dagrpo.engine import AdapterLayers, Capabilities, Engine, Footprint
from dagrpo.engine.config import EngineConfig

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dagrpo.checkpoints.gather import RankMemory
    from dagrpo.engine.interface import Classifier, RolloutEngine
    from dagrpo.models.config import Model

GIBIBYTE = 1 << 30
KEY_VARIABLE = "SGLANG_API_KEY"
JOINED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
)  # layers that it computes as qkv_proj and gate_up_proj
ADAPTER_LAYERS = AdapterLayers(
    served=re.compile(r"model\.layers\.\d+\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj"), joined=JOINED
)
PREFILL_TOKENS = 4096  # --chunked-prefill-size
Argument = (
    bool
    | Annotated[int, Field(ge=0, le=1 << 30)]
    | Annotated[float, Field(ge=0, le=1e9)]
    | Annotated[str, Field(max_length=100)]
)
# Flags that decide speed and memory, and no more, each with the type of its value. Others may round weights or products, draw or cut
# tokens in another way, open the server, or load files from elsewhere.
ARGUMENTS: Mapping[str, type] = {
    name: kind
    for kind, names in (
        (
            int,
            "cuda-graph-max-bs-decode cuda-graph-max-bs-prefill chunked-prefill-size max-prefill-tokens num-continuous-decode-steps "
            "num-reserved-decode-tokens prefill-max-requests scheduler-recv-interval weight-loader-prefetch-num-threads "
            "decode-log-interval",
        ),
        (float, "mem-fraction-static schedule-conservativeness watchdog-timeout soft-watchdog-timeout"),
        (str, "radix-eviction-policy log-level"),
        (
            bool,
            "disable-radix-cache disable-overlap-schedule enable-mixed-chunk disable-cuda-graph disable-cuda-graph-padding "
            "disable-decode-cuda-graph disable-prefill-cuda-graph disable-custom-all-reduce enable-nccl-nvls enable-symm-mem "
            "enable-torch-symm-mem enable-mscclpp enable-p2p-check pre-warm-nccl weight-loader-prefetch-checkpoints "
            "weight-loader-disable-mmap enable-two-batch-overlap enable-single-batch-overlap",
        ),
    )
    for name in names.split()
}
BUCKET_BYTES = 512 << 20  # of tensors that reach it together

# SGLang 0.5.23 takes the pixels of any other patches for what a vision tower has made already, and leaves the tower out.
SERVED_PATCH_SIZES: Mapping[str, int] = {"qwen2_5_vl": 14}
NOT_WITH_PICTURES = "but a vision tower over several GPUs was never tried, and this model has one: set it to 1"


class Config(EngineConfig):
    """SGLang (Zheng et al. 2024, arXiv 2312.07104), on a GPU or a CPU."""

    name: PluginName = Field("sglang", description="The engine.")
    servers: Texts = Field(
        [],
        description="Addresses of SGLang servers that run elsewhere; empty: the stage starts its own servers. Start one of a model that "
        "takes pictures with --image-processor-backend=pil, in an environment with SGLANG_VLM_CACHE_SIZE_MB=0; with "
        "--mm-preprocess-cache-size-mb=1024 it prepares each picture once.",
    )
    attention_backend: Literal["fa3", "flashinfer", "triton"] | None = Field(
        None,
        description="Attention kernels of a server that the stage starts on a GPU (--attention-backend); null: triton in float32, else "
        "SGLang's choice for the GPU. Another one rounds differently.",
    )
    arguments: Annotated[Mapping[Annotated[str, Field(max_length=100)], Argument], Field(max_length=50)] = Field(
        {},
        description="Further flags of servers that the stage starts, such as {mem-fraction-static: 0.8}: only those that decide speed and "
        "memory, and none with rollout.deterministic. A flag without a value is true.",
    )

    @field_validator("arguments")
    @classmethod
    def _known(cls, arguments: Mapping[str, Argument]) -> Mapping[str, Argument]:
        for name, value in arguments.items():
            _require_admitted(name, value)
        return arguments


def _static_share(config: Config, memory: int) -> float:
    """Return --mem-fraction-static of a GPU with `memory` bytes: given, or by SGLang's rule (srt/arg_groups/memory_hook.py)."""
    if given := config.arguments.get("mem-fraction-static"):
        return float(given)
    prompts = int(config.arguments.get("chunked-prefill-size", PREFILL_TOKENS))
    mebibytes = 512 + 1.5 * max(prompts, 2048) + 128 * config.ranks + 2 * config.max_running_requests
    reserved = max(mebibytes * (1 << 20), 10 * GIBIBYTE if memory > 60 * GIBIBYTE else 0)
    return 1 - reserved / memory


def _require_admitted(name: str, value: Argument) -> None:
    """Raise UserError if a flag of SGLang is unknown here, may change results, or has a value of another type."""
    kind = ARGUMENTS.get(name)
    if kind is None:
        raise UserError(
            f"runtime.engine.arguments: {name} is not among the flags that decide speed and memory; {nearest(name, ARGUMENTS)}. Remove it"
        )
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise UserError(
            f"runtime.engine.arguments: {name} is {value!r}, and SGLang reads a {kind.__name__}: give it one"
        )


def check(config: Config, section: str, model: Model, deterministic: bool) -> None:
    """Raise UserError if SGLang cannot serve a fresh model with these parameters; one from the hub is checked at the start."""
    if config.arguments and deterministic:
        raise UserError(
            f"{section}.arguments is not empty, and rollout.deterministic is true, where flags must not decide which requests are computed "
            "together: empty it, or set rollout.deterministic to false"
        )
    fresh = model.fresh
    if model.source != "fresh" or section != "runtime.engine":
        return
    if config.ranks > 1:
        key = f"{section}.tensor_parallel{' x nodes_per_server' if config.nodes_per_server > 1 else ''}"
        if fresh.takes_pictures:
            raise UserError(f"{key} is {config.ranks}, {NOT_WITH_PICTURES}")
        heads, inner = fresh.num_attention_heads, fresh.intermediate_size
        require_divided(heads, fresh.num_key_value_heads, inner, config.ranks, key)
    vision = fresh.vision
    served = SERVED_PATCH_SIZES.get(vision.family, vision.patch_size)
    if vision.patch_size != served:
        raise UserError(
            f"model.fresh.vision.patch_size is {vision.patch_size}, and SGLang reads a {vision.family} with patches of {served} alone: "
            f"set it to {served}, or model.fresh.vision.family to qwen3_vl"
        )


def _open(*args: Any, **options: Any) -> AbstractContextManager[RolloutEngine]:
    from dagrpo.engine.sglang.connect import open_sglang  # imports torch

    return open_sglang(*args, **options)


def _start(*args: Any, **options: Any) -> Any:
    from dagrpo.engine.sglang.connect import start_server

    return start_server(*args, **options)


def _open_classifier(*args: Any, **options: Any) -> AbstractContextManager[Classifier]:
    from dagrpo.engine.sglang.classifier import open_classifier

    return open_classifier(*args, **options)


def _memory() -> RankMemory:
    from dagrpo.engine.sglang.tensor_sync import SharedMemory

    return SharedMemory()


def require_divided(heads: int, key_value_heads: int, inner: int, ranks: int, key: str) -> None:
    """Raise UserError if SGLang cannot divide layers over `ranks`. `inner`: width of the MLP; `key`: names `ranks`.

    As SGLang's layers/linear.py divides them: each rank has equally many heads, and a key-value head may be in several ranks.
    """

    def divide(number: int) -> bool:
        return heads % number == inner % number == 0 and 0 in (key_value_heads % number, number % key_value_heads)

    if not divide(ranks):
        numbers = ", ".join(str(number) for number in range(1, heads + 1) if divide(number))
        raise UserError(
            f"{key} is {ranks}, which cannot divide {heads} attention heads, {key_value_heads} key-value heads and an MLP of "
            f"{inner}: set it to one of {numbers}"
        )


ENGINE = Engine(
    config=Config,
    capabilities=Capabilities(
        bit_exact=True,
        sampling_mask=4096,  # --sampling-mask-max-tokens
        scores=True,
        aborts=True,
        aborted_tokens=True,
        pictures=True,
        float32_head=True,
        weight_digest=True,
        lora=ADAPTER_LAYERS,
        release_memory=True,
        tensor_parallel=True,
        spans_nodes=True,
        elsewhere=True,
    ),
    open=_open,
    start=_start,
    open_classifier=_open_classifier,
    memory=_memory,
    packages=("sglang",),
    own_packages=("dagrpo_sglang_adapters", "dagrpo_sglang_cpu"),
    key_variable=KEY_VARIABLE,
    reserved_tokens=6,  # that its scheduler keeps from a prompt
    footprint=Footprint(
        prefill_tokens=PREFILL_TOKENS,
        logit_copies=3,
        gpu_bytes=int(2.5 * GIBIBYTE),
        cpu_bytes=int(1.5 * GIBIBYTE),  # scheduler, tokenizer and detokenizer
        packed_dtypes=frozenset({"float32", "bfloat16"}),  # dagrpo-sglang-cpu packs their weights
        packed_limit=2 * GIBIBYTE,
        sync_bytes=BUCKET_BYTES,
        static_share=_static_share,
    ),
    check=check,
)
