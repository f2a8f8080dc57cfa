"""Command line and environment of an SGLang server.

server.py starts it.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dagrpo.core.section import HeadDtype
from dagrpo.engine.interface import AdapterForm
from dagrpo.engine.servers import Part
from dagrpo.engine.sglang import PREFILL_TOKENS, Argument, Config
from dagrpo.engine.sglang.toolkit import compiler_environment, with_cuda_runtime
from dagrpo.utils.child_variables import LOOPBACK, is_of_a_launcher
from dagrpo.utils.files import write_private
from dagrpo.utils.machine import READ_BY_LIBRARIES

HOST = "127.0.0.1"
LOGGING = "logging.json"  # in the scratch folder
CPU_FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--cuda-graph-backend-decode=disabled",
    "--cuda-graph-backend-prefill=disabled",
    "--disable-overlap-schedule",  # there is no second device to overlap with
    "--enable-deterministic-inference",  # a request's sampling_seed is ignored without it; costs nothing on a CPU
)
PICTURE_FLAGS = (
    "--image-processor-backend=pil",  # as training prepares them (models/pictures.py)
    # The samples of a prompt show one picture, and SGLang would prepare it for each of them. By its content, and before any weight
    # has seen it, so that there is nothing to forget. Of a picture of a megapixel, 19 MB are kept.
    "--mm-preprocess-cache-size-mb=1024",
)
CPU_MEMORY_FLAG = (
    "--mem-fraction-static=0.5"  # SGLang's own choice is below 0 for these; max-total-tokens says what is used
)
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "dagrpo_sglang_cpu.models",
    # One thread of any library that is there once SGLang is imported, such as OpenBLAS's, would keep its processes from being forked.
    **dict.fromkeys(READ_BY_LIBRARIES, "1"),
    # Memory that a forward pass frees stays for the next one: else the kernel clears the pages of all logits for each token.
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "TORCHDYNAMO_DISABLE": "1",  # torch.compile of the sampler: 19 s in the first batch, nothing saved later
}
COMPUTING = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # set to runtime.engine.threads: these libraries start threads only with the first computation
Kind = Literal["cpu", "cuda"]
# A classifier reads the last token of a whole conversation, which must not be cut, nor begin with tokens of another one's cache.
CLASSIFIER_FLAGS = ("--is-embedding", "--disable-radix-cache")
# A server that can leave its GPU and come back (torch-memory-saver). What it captures in CUDA graphs stays: a few hundred MB.
MEMORY_FLAGS = ("--enable-memory-saver",)
OF_THE_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # with expandable segments it cannot leave
# SGLang chooses fa3 or flashinfer for a GPU by its architecture, whatever the type: both take 16 bits alone, triton takes float32 too,
# and is one of its deterministic backends (DETERMINISTIC_ATTENTION_BACKEND_CHOICES of its server_args.py).
FLOAT32_ATTENTION = "triton"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_DIAG_BYPASS_HEALTH_GENERATE": "1",  # a health check, which takes no key, must not add a request to a batch
    **LOOPBACK,
    "NO_PROXY": HOST,
    "no_proxy": HOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Settings of a server: what it serves, and how."""

    model: Path
    config: Config
    dtype: str = "float32"
    head_dtype: HeadDtype = None
    deterministic: bool = True  # matters on a GPU, and to models that accept pictures
    version: str = "default"  # its name of its first weights
    has_weights: bool = True  # False: it waits for the next weight sync
    keep_pictures: bool = False  # see `picture_environment`
    adapter: AdapterForm | None = None  # served beside the weights
    classifies: bool = False  # the model is a sequence classifier
    host: str = HOST  # the address of this machine at which it listens
    part: Part | None = None  # of a server that several machines share; None: it is whole

    @property
    def ranks(self) -> int:
        """Return the number of processes that it divides every layer over."""
        return self.config.tensor_parallel * (1 if self.part is None else self.part.of)


def server_command(serving: Serving, port: int, settings: Path, *, device: Kind, pictures: bool = False) -> list[str]:
    """Return the command line. It names everything that decides how a batch is cut, instead of leaving it to the machine's size.

    `pictures`: whether the model accepts any.
    """
    config, part, on_cpu, classifies = serving.config, serving.part, device == "cpu", serving.classifies
    flags = {
        "model-path": serving.model.resolve(),
        "host": serving.host,
        "port": port,
        "config": settings,
        "dtype": serving.dtype,
        "weight-version": serving.version,
        "tp-size": serving.ranks,
        **({} if config.max_total_tokens is None else {"max-total-tokens": config.max_total_tokens}),
        "max-running-requests": config.max_running_requests,
        "chunked-prefill-size": -1 if classifies else PREFILL_TOKENS,
        "max-prefill-tokens": 16384,
        "schedule-policy": "fcfs",
        "random-seed": 0,
        "watchdog-timeout": max(300, config.request_timeout),
        "log-level-http": "warning",
        **({} if part is None else {"nnodes": part.of, "node-rank": part.number, "dist-init-addr": part.store}),
    }
    chosen = {
        "--load-format=dummy": not serving.has_weights,
        "--enable-fp32-lm-head": serving.head_dtype == "float32",
        **dict.fromkeys(CLASSIFIER_FLAGS, classifies),
        **dict.fromkeys(MEMORY_FLAGS, config.release_memory),
        "--enable-weights-cpu-backup": config.release_memory and classifies,  # no weight sync brings them back
        **dict.fromkeys(PICTURE_FLAGS, pictures),
        "--mm-attention-backend=sdpa": pictures and on_cpu,
        CPU_MEMORY_FLAG: on_cpu and (pictures or classifies),
    }
    return [
        *(sys.executable, "-m", "sglang.launch_server"),
        *(word for name, value in flags.items() for word in (f"--{name}", str(value))),
        *("--skip-tokenizer-init", "--skip-server-warmup", "--sleep-on-idle"),  # tokens in, tokens out
        *(CPU_FLAGS if on_cpu else _gpu_flags(config, serving.dtype, deterministic=serving.deterministic)),
        *(flag for flag, holds in chosen.items() if holds),
        *(adapter_flags(serving.adapter, device) if serving.adapter is not None else ()),
        *_further_flags(config.arguments),  # last, as the parser takes the last value of a flag
    ]


def _further_flags(arguments: Mapping[str, Argument]) -> Iterator[str]:
    """Yield the flags of `runtime.engine.arguments`; a flag without a value is there if it is true."""
    for name, value in arguments.items():
        if value is True:
            yield f"--{name}"
        elif value is not False:
            yield f"--{name}={value}"


def _gpu_flags(config: Config, dtype: str, *, deterministic: bool) -> tuple[str, ...]:
    attention = config.attention_backend or (FLOAT32_ATTENTION if dtype == "float32" else None)
    return (
        # Beyond its largest graph SGLang decodes without one, several times as slowly; its own choice is 32 to 256 requests.
        f"--cuda-graph-max-bs-decode={config.max_running_requests}",
        *(() if attention is None else (f"--attention-backend={attention}",)),
        *(("--enable-deterministic-inference",) if deterministic else ()),
    )


def adapter_flags(form: AdapterForm, device: Kind) -> list[str]:
    """Return the flags of a served adapter. Room for one is enough: requests of two versions are never computed together."""
    return [
        "--enable-lora",
        f"--max-lora-rank={form.rank}",
        "--max-loras-per-batch=1",
        "--lora-strict-loading",
        *(("--lora-backend=torch_native",) if device == "cpu" else ()),  # the others are kernels for a GPU
        "--lora-target-modules",
        *form.target_modules,
    ]


def server_environment(
    inherited: Mapping[str, str],
    scratch: Path,
    device: Kind,
    *,
    leaves: bool = False,
    threads: int = 1,
) -> dict[str, str]:
    """Return the environment. Temporary files and sockets go to the scratch folder; imports may cache their bytecode.

    SGLang's processes find each other by a file there: its default is a store that every host can read and write.
    leaves: whether it can release its GPU memory. Settings of torch's allocator are then dropped: with them its memory might not come
    from where torch-memory-saver looks. That library is preloaded before any of torch's, which would find libcudart by themselves.
    threads: number for computing on a CPU. On a busy machine two of them wait for each other, spinning.
    """
    dropped = OF_THE_ALLOCATOR if leaves else ()
    outer = {name: value for name, value in inherited.items() if not _is_dropped(name) and name not in dropped}
    own = {
        "TMPDIR": str(scratch),
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{scratch}/rendezvous",
        "SGLANG_LOGGING_CONFIG_PATH": str(scratch / LOGGING),
    }
    on_cpu = CPU_ENVIRONMENT | dict.fromkeys(COMPUTING, str(threads))
    of_device = on_cpu if device == "cpu" else compiler_environment(outer)
    runtime = {"LD_LIBRARY_PATH": with_cuda_runtime(outer)} if leaves and device == "cuda" else {}
    return outer | ENVIRONMENT | of_device | runtime | own


def picture_environment(*, deterministic: bool, keep: bool) -> dict[str, str]:
    """Return further environment variables for a server of a model that accepts pictures.

    keep: whether it may cache its vision tower's outputs. Nothing ever empties that cache, not even new weights: it is right only
    where the tower does not change. Its content depends on all earlier requests, so it is off in deterministic work, which has to resume
    with the same bits.
    """
    cache = {} if keep and not deterministic else {"SGLANG_VLM_CACHE_SIZE_MB": "0"}
    # The scheduler begins when the pictures of a whole HTTP request are prepared, not when those of its first prompt are.
    # Two such requests at the same time end the scheduler, so that only lockstep, which has one at a time, asks for it.
    together = {"SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1"} if deterministic else {}
    return cache | together


def divided_environment(ranks: int, device: Kind) -> dict[str, str]:
    """Return further environment variables for a server that divides its model over `ranks` ranks.

    On GPUs SGLang would refuse to start where one has less free memory than another, as beside a policy that uses some of them.
    On a CPU it would refuse more ranks than there are NUMA nodes, unless it gets their cores: every rank may use all.
    """
    if ranks == 1:
        return {}
    if device != "cpu":
        return {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join([f"0-{(os.cpu_count() or 1) - 1}"] * ranks)}


def shared_environment(part: Part) -> dict[str, str]:
    """Return further environment variables for a part of a server that several machines share.

    Its ranks find each other in a store that listens at one address (see nodes.py): SGLang's own listens at all. Without a queue of ZeroMQ
    for broadcasts, rank 0 opens no further port: they go by gloo.
    """
    return {
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"tcp://{part.store}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # so that rank 0 joins the store, too, and opens none
        "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0",
    }


def _is_dropped(name: str) -> bool:
    return is_of_a_launcher(name) or name == "PYTHONDONTWRITEBYTECODE"


def write_settings(scratch: Path, api_key: str) -> Path:
    """Write the API key to a private settings file, and SGLang's logging configuration, which leaves it out.

    Every user of the machine can read a command line, so the key stays off it. Returns the settings file, for `server_command`;
    `server_environment` names the logging configuration.
    """
    write_private(scratch / LOGGING, json.dumps(_logging_without(api_key)))
    settings = scratch / "settings.yaml"
    write_private(settings, json.dumps({"api-key": api_key}))  # JSON is YAML
    return settings


def _logging_without(api_key: str) -> dict[str, Any]:
    """Return SGLang's default logging configuration without secrets: by default it logs all settings."""
    formatter = {
        "()": "dagrpo.core.redaction.RedactingFormatter",
        "fmt": "[%(asctime)s] %(message)s",
        "secrets": [api_key],
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"redacting": formatter | {"datefmt": "%Y-%m-%d %H:%M:%S"}},
        "handlers": {"log": {"class": "logging.StreamHandler", "formatter": "redacting"}},
        "root": {"level": "INFO", "handlers": ["log"]},
        "loggers": {name: {"level": "WARNING"} for name in ("httpx", "httpcore")},
    }
