"""SGLang engine: its parameters, capabilities and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import PluginName
from dagrpo.core.section import Texts
from dagrpo.engine import AdapterLayers, Capabilities, Engine, Footprint
from dagrpo.engine.config import EngineConfig

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dagrpo.config.schema import Params
    from dagrpo.engine.interface import Classifier, RolloutEngine

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


def check(config: Config, section: str, params: Params) -> None:
    """Raise UserError if SGLang cannot serve a fresh model with these parameters; one from the hub is checked at the start."""
    fresh = params.model.fresh
    if params.model.source != "fresh" or section != "runtime.engine":
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
        pictures=True,
        float32_head=True,
        weight_digest=True,
        lora=ADAPTER_LAYERS,
        release_memory=True,
        tensors_by_ipc=True,
        tensor_parallel=True,
        spans_nodes=True,
        elsewhere=True,
    ),
    open=_open,
    start=_start,
    open_classifier=_open_classifier,
    packages=("sglang",),
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
    ),
    check=check,
)
